/**
 * Pauses a sandbox. Order of events:
 *
 *   1. Unsaved files on disks are saved, as far as that is possible within a few seconds. The channel to the guest is closed:
 *      what runs for a caller ends as if the caller had disconnected.
 *   2. The CPUs stop. Nothing changes memory, devices or disk from here on, so what is saved is one consistent state.
 *   3. Memory, device state and disk are written to the store, on disk and checksummed (vmm/save.ts).
 *   4. The manifest is renamed into place. This commits the pause: no later failure or crash undoes it.
 *   5. The record is written. Then the VMM is put on standby for a while (standby/), or stopped, which releases its
 *      slot, cgroup and memory.
 *
 * If anything fails before step 4, the guest continues as if the pause had not been requested. A host agent that dies
 * between steps 4 and 5 finds the generation at its next start and stops the VMM then (adopt.ts).
 */
import { crashPoint } from '@warren/kit/crash-point'
import { errorText } from '@warren/kit/error-text'
import { span } from '@warren/kit/span'
import type { HostUnsavedMount, HostVmPauseBody, HostVmPaused } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import type { Manifest } from '../snapshots/manifest.ts'
import { findPrivateBytes } from '../vmm/process.ts'
import { type SavedVm, saveVmm } from '../vmm/save.ts'
import type { Vmm } from '../vmm/vmm.ts'
import { type Entry, findPreviousResponse, findWait, getLive, runOperation } from './entries.ts'
import { moveVm } from './move.ts'
import { type PausedVm, toStored } from './record.ts'
import { saveCounts, saveFlows } from './usage.ts'

/** It takes a moment, and is not worth an error. */
const WAITS_FOR = ['resize']
/** A store that is away delays a pause by no more. What is not saved stays in the guest. */
const FLUSH_LIMIT_MS = 10_000

export async function pauseVm(deps: Deps, entry: Entry, { fence, limit_ms }: HostVmPauseBody): Promise<HostVmPaused> {
  for (let wait = findWait(entry, WAITS_FOR); wait; wait = findWait(entry, WAITS_FOR)) await wait
  const previous = findPreviousResponse<HostVmPaused>(entry, 'pause', fence)
  if (previous) return previous
  const newest = deps.snapshots.findNewestIntact(entry.id)
  if (entry.record.state === 'paused' && newest) return repeatPause(deps, entry, entry.record, fence, newest.manifest)
  const { vmm, signals, mounts } = getLive(entry)
  const { diskMib, growPending = false } = moveVm(entry, 'pause', { fence })
  return runOperation(entry, 'pause', fence, async (aborted) => {
    try {
      let unsaved: HostUnsavedMount[] = []
      const { saved, response } = await withRoom(deps, vmm, aborted, async () => {
        const flushMs = Math.min(FLUSH_LIMIT_MS, limit_ms / 4)
        unsaved = await span('save files on disks', async () => (await mounts?.flush(flushMs)) ?? [])
        for (const connection of entry.connections) connection.destroy()
        return commitGeneration(deps, { id: entry.id, diskMib, growPending }, vmm, limit_ms)
      })
      await span('read counters', () => saveCounts(deps, entry, vmm.record))
      const counts = toStored(entry.record)?.counts
      if (counts) response.counts = counts
      if (unsaved.length > 0) response.unsaved_mounts = unsaved
      vmm.stopping = true
      entry.live = undefined
      signals.abort()
      const paused = moveVm(entry, 'pauseDone', { fence, response })
      // It is paused even if this fails: the next start recognises it by its generation.
      await span('write record', () => deps.registry.write(paused)).catch((error) =>
        deps.log.error({ err: error, sandbox: entry.id }, 'failed to write the record of a paused sandbox'),
      )
      await crashPoint('host.pause.recorded')
      // In the background: only a resume or a delete waits for it.
      entry.standbyReady = moveToStandby(deps, entry, paused, vmm, saved)
      return response
    } catch (error) {
      if (entry.record.state === 'pausing') moveVm(entry, 'pauseFailed', {})
      throw error
    }
  })
}

/**
 * Before anything of the guest is disturbed. Its disk is there already; its memory is written now. A delete ends the wait for
 * space, and not the save.
 */
async function withRoom<T>(deps: Deps, { record }: Vmm, aborted: AbortSignal, save: () => Promise<T>): Promise<T> {
  try {
    return await deps.volume.withRoom('the saved memory', findPrivateBytes(record.qemu), save, aborted)
  } catch (error) {
    if (error instanceof HostError && error.code === 'pause_failed') throw error
    throw new HostError('pause_failed', `nothing was saved: ${errorText(error)}`, { cause: error })
  }
}

/** Steps 1 to 4. */
async function commitGeneration(
  deps: Deps,
  vm: { id: string; diskMib: number; growPending: boolean },
  vmm: Vmm,
  limitMs: number,
): Promise<{ saved: SavedVm; response: HostVmPaused }> {
  const startedAt = performance.now()
  const generation = deps.snapshots.nextGeneration(vm.id)
  let saved: SavedVm
  try {
    await span('close guest channel', () => vmm.closeChannel())
    await crashPoint('host.pause.closed')
    await vmm.pauseCpus()
    await crashPoint('host.pause.stopped')
    const draft = await span('save VM', () => saveVmm(deps, vm, vmm))
    saved = draft.saved
    try {
      await crashPoint('host.pause.saved')
      if (performance.now() - startedAt > limitMs) throw new Error(`it took longer than ${limitMs} ms`)
      await span('write manifest', () => deps.snapshots.add({ ...saved, sandbox: vm.id, generation }))
    } finally {
      await draft.reservation.release()
    }
  } catch (error) {
    // A VMM whose CPUs cannot be resumed has exited, which watch.ts reports.
    await vmm
      .resumeCpus()
      .catch((cause) => deps.log.error({ err: cause, sandbox: vm.id }, 'failed to resume a VM after a failed pause'))
    throw new HostError('pause_failed', `nothing was saved: ${errorText(error)}`, { cause: error })
  }
  await crashPoint('host.pause.committed')
  // A failure here changes nothing: the new generation is committed.
  await span('delete old generations', () => deps.snapshots.deleteOld(vm.id)).catch((error) =>
    deps.log.error({ err: error, sandbox: vm.id }, 'failed to delete an old generation'),
  )
  deps.compactor.add(vm.id)
  const written_bytes = saved.memory.bytes + saved.state.bytes + (saved.disk.at(-1)?.bytes ?? 0)
  const took_ms = Math.round((performance.now() - startedAt) * 10) / 10
  return { saved, response: { generation, took_ms, dirty_bytes: saved.memory.dirty_bytes, written_bytes } }
}

async function moveToStandby(deps: Deps, entry: Entry, paused: PausedVm, vmm: Vmm, saved: SavedVm): Promise<void> {
  if (await saveFlows(deps, entry, vmm.record)) {
    void deps.registry
      .write(entry.record)
      .catch((error) =>
        deps.log.warn(
          { err: error, sandbox: entry.id },
          'failed to write the destinations that a sandbox reached or was refused',
        ),
      )
  }
  const { id: sandbox, ip, diskMib, generation } = paused
  const dirtyBytes = saved.memory.dirty_bytes
  await deps.standby.add(saved.memory.id, vmm, { sandbox, generation, ip, dirtyBytes, diskMib })
}

/** The sandbox was paused by an earlier operation, and its caller never received the response. */
async function repeatPause(
  deps: Deps,
  entry: Entry,
  { counts }: PausedVm,
  fence: number,
  { generation, memory, state }: Manifest,
): Promise<HostVmPaused> {
  const written_bytes = memory.bytes + state.bytes
  const response = { generation, took_ms: 0, dirty_bytes: memory.dirty_bytes, written_bytes, ...(counts && { counts }) }
  await deps.registry.write(moveVm(entry, 'pauseRepeated', { fence, response }))
  return response
}
