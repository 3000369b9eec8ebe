/**
 * Order of events in a pause:
 *
 *   1. the way to the guest is closed: what ran for a caller ends as if the caller had gone
 *   2. `stop`: memory, processors and disk are one instant
 *   3. memory, device state and disk into the store, on disk and checksummed (save.ts)
 *   4. the manifest, renamed into place: from here on it is paused, whatever happens
 *   5. the record; then the body stands by for a while (standby.ts) or ends, and with it slot, cgroup and memory
 *
 * Whatever fails before 4 lets the body go on as if nothing had been. A host agent that dies between 4 and 5 finds the
 * generation at its next start and ends the body then (adopt.ts).
 */
import { crashPoint } from '@warren/kit/crash-point'
import { errorText } from '@warren/kit/text'
import type { HostVmPaused } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import { type Saved, saveVmm } from '../vmm/save.ts'
import type { Vmm } from '../vmm/vmm.ts'
import type { VmRecord } from './registry.ts'

/** Step 5 is the caller's. `memory`: the object the memory was saved as. */
export async function pauseVm(
  deps: Deps,
  record: VmRecord,
  body: Vmm,
  limitMs: number,
): Promise<{ paused: HostVmPaused; memory: string }> {
  const startedAt = performance.now()
  const generation = deps.snapshots.nextGeneration(record.id)
  let saved: Saved
  try {
    await body.closeChannel()
    await crashPoint('host.pause.closed')
    await body.pauseCpus()
    await crashPoint('host.pause.stopped')
    const draft = await saveVmm(deps, record, body)
    saved = draft.saved
    try {
      await crashPoint('host.pause.saved')
      if (performance.now() - startedAt > limitMs) throw new Error(`it took longer than ${limitMs} ms`)
      await deps.snapshots.add({ ...saved, sandbox: record.id, generation })
    } finally {
      await draft.reservation.release()
    }
  } catch (error) {
    // A body that cannot go on is dead, and its watcher says so.
    await body.resumeCpus().catch((cause) => deps.log.error({ err: cause, sandbox: record.id }, 'could not go on'))
    throw new HostError('pause_failed', `nothing was saved: ${errorText(error)}`, { cause: error })
  }
  await crashPoint('host.pause.committed')
  // It is paused, whatever becomes of older ones.
  await deps.snapshots
    .deleteOld(record.id)
    .catch((error) => deps.log.error({ err: error, sandbox: record.id }, 'could not remove an old generation'))
  deps.compactor.add(record.id)
  const written_bytes = saved.memory.bytes + saved.state.bytes + (saved.disk.at(-1)?.bytes ?? 0)
  const took_ms = Math.round((performance.now() - startedAt) * 10) / 10
  const paused = { generation, took_ms, dirty_bytes: saved.memory.dirty_bytes, written_bytes }
  return { paused, memory: saved.memory.id }
}
