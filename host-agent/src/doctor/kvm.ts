/**
 * Reports whether guests use KVM or are emulated. Both work, so this check never fails. Emulation is slower, and it is no
 * security boundary: the control plane refuses creates on such a host once there are several users.
 */
import { type KvmProbe, probeKvm } from '../vmm/kvm-probe/probe.ts'
import type { Check, CheckResult } from './check.ts'

export const kvmChecks = (): Check[] => [
  { name: 'kvm', needed: 'recommended', run: async (signal) => describeKvm(await probeKvm({ signal })) },
]

const EMULATED = 'software emulation (TCG): 10-20x slower, and not a security boundary between users'

export function describeKvm(probe: KvmProbe): CheckResult {
  if (probe.usable) return { ok: true, detail: 'runs a 64-bit guest' }
  return { ok: true, detail: `not usable: ${probe.reason}`, note: EMULATED }
}
