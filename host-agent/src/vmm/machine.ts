/** Detects which kind of VM this host can run, from QEMU and the kernel rather than from the distribution's name. */
import { runCommandOrThrow } from '../run-command.ts'
import type { Machine } from './args.ts'
import { HARDWARE_VERSION } from './hardware.ts'
import { type ProbeOptions, probeKvm } from './kvm-probe/probe.ts'

export const QEMU_BINARY = 'qemu-system-x86_64'

export async function detectMachine(probe: ProbeOptions = {}): Promise<{ machine: Machine; why: string }> {
  const [{ stdout: versionText }, { stdout: machines }, kvm] = await Promise.all([
    runCommandOrThrow(QEMU_BINARY, ['--version']),
    runCommandOrThrow(QEMU_BINARY, ['-machine', 'help']),
    probeKvm(probe),
  ])
  const version = parseQemuVersion(versionText)
  const machine: Machine = {
    binary: QEMU_BINARY,
    version,
    type: findNewestQ35(machines),
    hardware: HARDWARE_VERSION,
    accel: kvm.usable ? 'kvm' : 'tcg',
    cpu: kvm.usable ? 'host' : EMULATED_CPU,
    readOnlyRam: isAtLeast(version, 8, 2),
  }
  return { machine, why: kvm.usable ? '/dev/kvm runs a 64-bit guest' : `software emulation: ${kvm.reason}` }
}

/** `rep movsb` is emulated byte by byte. Without these two features the guest kernel copies with wide moves instead. */
const EMULATED_CPU = 'max,erms=off,fsrm=off'

export function parseQemuVersion(text: string): string {
  const version = /version (\d+\.\d+\.\d+)/.exec(text)?.[1]
  if (!version) throw new Error(`failed to parse the version of QEMU from: ${text.slice(0, 200)}`)
  return version
}

/** Versioned, so that a newer QEMU can load a state that was saved with it. */
export function findNewestQ35(machines: string): string {
  const versions = [...machines.matchAll(/^pc-q35-(\d+)\.(\d+)\s/gm)].map((match) => [
    Number(match[1]),
    Number(match[2]),
  ])
  const newest = versions.sort(([a1, a2], [b1, b2]) => b1! - a1! || b2! - a2!)[0]
  if (!newest) throw new Error('this QEMU has no q35 machine; install a QEMU for x86-64')
  return `pc-q35-${newest[0]}.${newest[1]}`
}

function isAtLeast(version: string, major: number, minor: number): boolean {
  const [a = 0, b = 0] = version.split('.').map(Number)
  return a > major || (a === major && b >= minor)
}
