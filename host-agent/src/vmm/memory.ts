/** The limits of a VMM's memory, and what the kernel reports when it was exceeded. */
import { writeFileSync } from 'node:fs'
import { vmmMemoryMib } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import type { Undo } from '../undo.ts'
import type { Shape } from './args.ts'
import { OOM_SCORE, OOM_SCORE_SPARE, THREADS_MAX } from './jail/options.ts'
import type { VmmRecord } from './record.ts'

const MIB = 1024 * 1024

/** Returns the files that the VMM's pid is written to. The control plane has reserved what the cgroup allows. */
export async function createVmmCgroup(deps: Deps, id: string, shape: Shape, undo: Undo): Promise<string[]> {
  undo.add('cgroup', () => deps.cgroups.remove(id))
  const memoryBytes = vmmMemoryMib(shape, deps.machine.accel) * MIB
  return (await deps.cgroups.create(id, { memoryBytes, threads: THREADS_MAX })).procs
}

/** VMMs that only save time die first when the machine runs out of memory. Does nothing if the process has exited. */
export function setSpare({ record }: { record: VmmRecord }, isSpare: boolean): void {
  try {
    writeFileSync(`/proc/${record.qemu.pid}/oom_score_adj`, `${isSpare ? OOM_SCORE_SPARE : OOM_SCORE}`)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (code !== 'ENOENT' && code !== 'ESRCH') throw error
  }
}

/** Why the kernel killed the VMM, or undefined if it did not. To be asked before its cgroup is removed. */
export async function explainKill(deps: Deps, id: string): Promise<string | undefined> {
  const events = await deps.cgroups.findMemoryEvents(id)
  if (!events || events.killed === 0) return undefined
  return `its QEMU process exceeded its memory limit of ${Math.round(events.limitBytes / MIB)} MiB and was killed (out of memory)`
}
