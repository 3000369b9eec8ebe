/**
 * Deletes a sandbox with everything that was saved of it. A create or resume under way is aborted, also a pause
 * that waits for space; one that has begun is waited for, because it cannot be left half done. Deleting a sandbox that is not here succeeds.
 *
 * Order of events: the VMM is stopped; the record is deleted, from which point the sandbox does not exist; the generations
 * and the samples of its metrics are deleted. If the host agent dies in between, its next start removes everything that no record names (adopt.ts).
 */
import { crashPoint } from '@warren/kit/crash-point'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import { stopVmm } from '../vmm/release.ts'
import { checkFence, type Entries } from './entries.ts'
import { moveVm } from './move.ts'
import { findVmmRecord } from './record.ts'

export async function deleteVm(deps: Deps, entries: Entries, id: string, fence: number): Promise<void> {
  const entry = entries.find(id)
  if (entry) checkFence(entry.record, fence)
  entries.addTombstone(id, fence)
  if (entries.unreadable.has(id)) return deleteUnreadable(deps, entries, id)
  if (!entry) return
  moveVm(entry, 'delete', { fence })
  if (entry.operation) {
    entry.operation.abort.abort(new HostError('fence_lost', `${id} was deleted`))
    await entry.operation.done.catch(() => {}) // Reported to the caller of that operation.
  }
  for (const connection of entry.connections) connection.destroy()
  // The operation failed and removed the sandbox itself.
  if (entries.find(id) !== entry) return
  await entry.standbyReady
  const memory = deps.snapshots.findNewestIntact(id)?.manifest.memory.id
  if (memory !== undefined && entry.record.state === 'paused') await deps.standby.drop(memory)
  const vmm = findVmmRecord(entry.record)
  if (vmm) await stopVmm(deps, vmm, entry.live?.vmm)
  // An exit that is still being handled (watch.ts) must not write the record again.
  entry.live?.signals.abort()
  entry.live = undefined
  await crashPoint('host.delete.ended')
  await deps.registry.delete(id)
  await crashPoint('host.delete.unrecorded')
  await deps.snapshots.deleteAll(id)
  deps.rings.remove(id)
  entries.delete(id)
}

/** Which VMM it has is not known. The next start removes it, since no record may name it then. */
async function deleteUnreadable(deps: Deps, entries: Entries, id: string): Promise<void> {
  deps.log.warn({ sandbox: id }, 'deleted a sandbox with an unreadable record; the next start removes its VMM')
  await deps.registry.delete(id)
  await deps.snapshots.deleteAll(id)
  deps.rings.remove(id)
  entries.unreadable.delete(id)
}
