/**
 * Checks whether /dev/kvm really runs a stock 64-bit guest.
 *
 * That the device exists proves nothing: PVM, for example, offers it and runs only kernels made for PVM. So the probe runs
 * two tiny guests (guest.ts), each in a child process (main.ts) that is killed after a time limit. Stage B decides. Stage
 * A comes first, to tell a KVM that runs nothing from one that does not run what a sandbox needs.
 */
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { type RunCommandOptions, runCommandOrThrow } from '../../run-command.ts'
import { findKvmGroups, KVM_DEVICE } from '../kvm-access.ts'
import { RESULT_PORT, STAGE_VALUE, STAGES, type Stage } from './guest.ts'

export type KvmProbe = { usable: true } | { usable: false; reason: string }

/** `guestCpuMaxMs`: a guest that takes longer counts as emulated. Tests in an emulated machine allow more. */
export type ProbeOptions = { stageLimitMs?: number; guestCpuMaxMs?: number; signal?: AbortSignal }

/** The output of the child process. */
export type StageReport =
  | { end: 'io'; port: number; value: number; cpuMs: number }
  | { end: 'exit'; exitReason: number; suberror?: number; rip: number }
  | { end: 'refused'; call: string; code: string }
  | { end: 'version'; version: number }

/** Mostly for Node to start on a busy machine; the guest itself needs a few milliseconds. */
const STAGE_LIMIT_MS = 3_000
/** A CPU runs the million iterations of stage B in about 1 ms; PVM's emulator took 1400 ms. */
const GUEST_CPU_MAX_MS = 200

const NOT_FOR_QEMU =
  'KVM works, but /dev/kvm is open to root only, and QEMU runs as another user: ' +
  'run `groupadd -f --system kvm && chown root:kvm /dev/kvm && chmod 660 /dev/kvm`'

const CHILD = fileURLToPath(new URL('./main.ts', import.meta.url))

const STAGE_GUEST = { A: 'a real-mode guest', B: 'a 64-bit guest' } as const satisfies Record<Stage, string>

/** Exit reasons of linux/kvm.h that a guest may end with when it does not run. */
const EXIT_NAMES: Record<number, string> = {
  0: 'unknown',
  1: 'exception',
  5: 'halt',
  6: 'mmio',
  8: 'shutdown',
  9: 'failed entry',
  17: 'internal error',
}

export async function probeKvm(options: ProbeOptions = {}): Promise<KvmProbe> {
  const { stageLimitMs = STAGE_LIMIT_MS, guestCpuMaxMs, signal } = options
  if (!existsSync(KVM_DEVICE)) return { usable: false, reason: 'no /dev/kvm' }
  if (process.arch !== 'x64') return { usable: false, reason: `guests are x86-64 and this machine is ${process.arch}` }
  for (const stage of STAGES) {
    const result = await runStage(stage, { timeoutMs: stageLimitMs, signal }, guestCpuMaxMs)
    if (result !== 'passed') return { usable: false, reason: result }
  }
  if (!findKvmGroups()) return { usable: false, reason: NOT_FOR_QEMU }
  return { usable: true }
}

/** 'passed', or the reason why not. */
async function runStage(stage: Stage, options: RunCommandOptions, guestCpuMaxMs?: number): Promise<string> {
  try {
    const { stdout } = await runCommandOrThrow(process.execPath, [CHILD, stage], options)
    return evaluateStage(stage, JSON.parse(stdout), guestCpuMaxMs)
  } catch (error) {
    if (options.signal?.aborted) throw error
    return `stage ${stage}: ${(error as Error).message}`
  }
}

/** 'passed' if the stage ended as it does on a CPU; otherwise the reason why KVM is not usable. */
export function evaluateStage(stage: Stage, report: StageReport, guestCpuMaxMs = GUEST_CPU_MAX_MS): string {
  switch (report.end) {
    case 'io':
      return evaluateResult(stage, report, guestCpuMaxMs)
    case 'exit': {
      const exit = `exit reason ${report.exitReason} (${EXIT_NAMES[report.exitReason] ?? 'unexpected'})`
      const suberror = report.suberror === undefined ? '' : `, suberror ${report.suberror}`
      const at = `at 0x${report.rip.toString(16)}`
      return `stage ${stage}: ${STAGE_GUEST[stage]} does not run: ${exit}${suberror} ${at}${pvmHint(stage)}`
    }
    case 'version':
      return `KVM API version ${report.version} instead of 12`
    case 'refused':
      if (report.call === 'open' && ['EACCES', 'EPERM'].includes(report.code)) return 'no permission to open /dev/kvm'
      return `stage ${stage}: ${report.call} was refused (${report.code})`
  }
}

function evaluateResult(
  stage: Stage,
  { port, value, cpuMs }: Extract<StageReport, { end: 'io' }>,
  guestCpuMaxMs: number,
): string {
  const guest = `stage ${stage}: ${STAGE_GUEST[stage]}`
  const wanted = STAGE_VALUE[stage]
  if (port !== RESULT_PORT || value !== wanted) {
    return `${guest} wrote ${value} to port ${port} instead of ${wanted} to port ${RESULT_PORT}`
  }
  if (cpuMs > guestCpuMaxMs) return `${guest} is emulated: it took ${Math.round(cpuMs)} ms`
  return 'passed'
}

const pvmHint = (stage: Stage): string =>
  stage === 'B' && existsSync('/sys/module/kvm_pvm') ? '; KVM is PVM here' : ''
