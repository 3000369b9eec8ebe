/** What a saved machine needs of the host that resumes it, and why a host may have to refuse. */
import { readFileSync } from 'node:fs'
import type { Deps } from '../deps.ts'
import type { Requirements } from '../snapshots/manifest.ts'
import { renderArgs, type Shape } from './args.ts'
import type { VmmRecord } from './vmm.ts'

type Vmm = Pick<VmmRecord, 'base' | 'baseId' | 'shape' | 'type'>

export function describeNeeds(deps: Deps, { base, baseId, shape, type }: Vmm): Requirements {
  const { version, accel, cpu } = deps.machine
  const flags = accel === 'kvm' ? { cpu_flags: readCpuFlags() } : {}
  return { base, baseId, machine: { version, type, accel, cpu }, ...flags, devices: devicesOf(deps, shape), shape }
}

/** Undefined when this host can run it. A newer QEMU keeps the machines of older ones, an older one cannot know newer. */
export function refuse(deps: Deps, needs: Requirements): string | undefined {
  const { machine } = deps
  const { accel, type, cpu, version } = needs.machine
  if (accel !== machine.accel) return `it was saved under ${accel}, and this host runs ${machine.accel}`
  if (olderThan(machine.version, version))
    return `it was saved by QEMU ${version}, and this host has ${machine.version}`
  if (!sameFamily(type, machine.type)) return `it is a ${type}, which this host does not offer`
  if (cpu !== machine.cpu) return `its processor is ${cpu}, and this host offers ${machine.cpu}`
  const missing = (needs.cpu_flags ?? []).filter((flag) => !readCpuFlags().includes(flag))
  if (missing.length > 0) return `its processor can ${missing.slice(0, 5).join(', ')}, and this host's cannot`
  const devices = devicesOf(deps, needs.shape)
  const other = needs.devices.find((device, i) => device !== devices[i])
  if (other !== undefined || devices.length !== needs.devices.length) return `its devices differ: ${other ?? 'fewer'}`
  return undefined
}

function devicesOf(deps: Deps, shape: Shape): string[] {
  const args = renderArgs({ start: 'state', machine: deps.machine, shape, socketDir: '', mtu: 0, layers: 0 })
  return args.filter((_, i) => args[i - 1] === '-device')
}

const readCpuFlags = (): string[] =>
  /^flags\s*:\s*(.*)$/m.exec(readFileSync('/proc/cpuinfo', 'utf8'))?.[1]?.split(' ') ?? []

function olderThan(a: string, b: string): boolean {
  const [left, right] = [a, b].map((text) => text.split('.').map(Number))
  for (let i = 0; i < 3; i++) if ((left![i] ?? 0) !== (right![i] ?? 0)) return (left![i] ?? 0) < (right![i] ?? 0)
  return false
}

/** pc-q35-7.2 and pc-q35-10.0: a newer binary offers both under their names. */
const sameFamily = (a: string, b: string): boolean => a.replace(/-[\d.]+$/, '') === b.replace(/-[\d.]+$/, '')
