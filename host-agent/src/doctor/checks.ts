/** All checks, in the order in which they are printed: from the platform up to the tools. */
import { authorityChecks } from './authorities.ts'
import { cgroupChecks } from './cgroups.ts'
import type { Check, Machine } from './check.ts'
import { databaseChecks } from './database.ts'
import { diskChecks } from './disks.ts'
import { ingressNameChecks } from './ingress-names.ts'
import { kernelChecks } from './kernel.ts'
import { kvmChecks } from './kvm.ts'
import { platformChecks } from './platform.ts'
import { portChecks } from './ports.ts'
import { resourceChecks } from './resources.ts'
import { toolChecks } from './tools.ts'

export const listChecks = (machine: Machine): Check[] => [
  ...platformChecks(machine),
  ...resourceChecks(machine),
  ...portChecks(machine),
  ...ingressNameChecks(machine),
  ...databaseChecks(machine),
  ...kvmChecks(),
  ...cgroupChecks(machine),
  ...kernelChecks(machine),
  ...toolChecks(machine),
  ...authorityChecks(machine),
  ...diskChecks(machine),
]
