/** What a saved VM needs of the host that resumes it, and whether this host has it. */
import { readFileSync } from 'node:fs'
import type { Deps } from '../deps.ts'
import type { Requirements } from '../snapshots/manifest.ts'
import { renderArgs, type Shape } from './args.ts'
import { HARDWARE_VERSION, isKnownHardware } from './hardware.ts'
import type { VmmRecord } from './record.ts'

export function describeRequirements(
  deps: Pick<Deps, 'machine'>,
  { base, baseId, shape, ...vmm }: VmmRecord,
): Requirements {
  const { version, accel, cpu } = deps.machine
  const flags = accel === 'kvm' ? { cpu_flags: readCpuFlags() } : {}
  const hardware = vmm.hardware ?? 1
  const machine = { version, type: vmm.machineType, hardware, accel, cpu }
  return { base, baseId, machine, ...flags, devices: devicesOf(deps, shape, hardware), shape }
}

/**
 * Why this host cannot run a saved VM; undefined if it can. A newer QEMU still offers the machine types of older ones,
 * an older QEMU does not know newer types.
 */
export function findIncompatibility(deps: Pick<Deps, 'machine'>, needs: Requirements): string | undefined {
  const { machine } = deps
  const { accel, type, cpu, version, hardware = 1 } = needs.machine
  if (accel !== machine.accel) return `it was saved under ${accel}, and this host runs ${machine.accel}`
  if (isOlder(machine.version, version)) return `it was saved by QEMU ${version}, and this host has ${machine.version}`
  if (familyOf(type) !== familyOf(machine.type)) return `it is a ${type}, which this host does not offer`
  if (!isKnownHardware(hardware)) return `its hardware version is ${hardware}, and this host knows ${HARDWARE_VERSION}`
  if (cpu !== machine.cpu) return `its processor is ${cpu}, and this host offers ${machine.cpu}`
  const missing = (needs.cpu_flags ?? []).filter((flag) => !readCpuFlags().includes(flag))
  if (missing.length > 0) return `this host's processor lacks ${missing.slice(0, 5).join(', ')}`
  const devices = devicesOf(deps, needs.shape, hardware)
  const other = needs.devices.find((device, i) => device !== devices[i])
  if (other !== undefined) return `its devices differ: this host has no ${other}`
  const added = devices[needs.devices.length]
  if (added !== undefined) return `its devices differ: it was saved without ${added}`
  return undefined
}

function devicesOf(deps: Pick<Deps, 'machine'>, shape: Shape, hardware: number): string[] {
  const machine = { ...deps.machine, hardware }
  const args = renderArgs({ start: 'state', machine, shape, socketDir: '', mtu: 0, layers: 0 })
  return args.filter((_, i) => args[i - 1] === '-device')
}

const readCpuFlags = (): string[] =>
  /^flags\s*:\s*(.*)$/m.exec(readFileSync('/proc/cpuinfo', 'utf8'))?.[1]?.split(' ') ?? []

function isOlder(version: string, other: string): boolean {
  const [left = [], right = []] = [version, other].map((text) => text.split('.').map(Number))
  for (let i = 0; i < 3; i++) if ((left[i] ?? 0) !== (right[i] ?? 0)) return (left[i] ?? 0) < (right[i] ?? 0)
  return false
}

/** pc-q35-7.2 and pc-q35-10.0 are one family: a newer QEMU offers both. */
const familyOf = (machineType: string): string => machineType.replace(/-[\d.]+$/, '')
