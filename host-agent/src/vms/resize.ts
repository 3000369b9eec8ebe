/**
 * Grows the disk of a running sandbox. Order of events:
 *
 *   1. The record gets the new size, and says that the file system may be smaller. It is written first, because every
 *      disk that is put on top of this one later has the size in the record, and must not be smaller than the one below.
 *   2. QEMU grows the active disk and notifies the guest.
 *   3. The guest grows its file system while it is in use, and flushes its journal.
 *   4. The record says that the file system has the size of the disk.
 *
 * Each step can be repeated. Whichever process is killed in between, the control plane asks again until step 4 is done. A
 * pause and a fork take the mark of step 1 along, and a resume does what is missing (resume.ts). If QEMU refuses step 2,
 * the record gets its old size back.
 */
import { crashPoint } from '@warren/kit/crash-point'
import { errorText } from '@warren/kit/error-text'
import { span } from '@warren/kit/span'
import type { HostVmResizeBody, HostVmResized } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import { queryDiskMib, resizeActiveDisk } from '../vmm/disk/block-nodes.ts'
import { growFileSystem, refreshActiveDisk } from '../vmm/disk/live.ts'
import type { Vmm } from '../vmm/vmm.ts'
import { checkFence, type Entry, findWait, getLive, runOperation, wrongState } from './entries.ts'
import { moveVm, vmCan } from './move.ts'
import { toStored } from './record.ts'

/** A pause waits this long at most for a guest that does not respond. Growing by 50 GiB takes well under a second. */
export const GROW_LIMIT_MS = 10_000

/** Operations that take a moment and after which the sandbox still runs. */
const WAITS_FOR = ['fork', 'resize']

export async function resizeVm(deps: Deps, entry: Entry, request: HostVmResizeBody): Promise<HostVmResized> {
  const knownMib = toStored(entry.record)?.diskMib ?? 0
  if (request.disk_mib > knownMib) deps.volume.checkFloor('a larger disk')
  for (let wait = findWait(entry, WAITS_FOR); wait; wait = findWait(entry, WAITS_FOR)) await wait
  const { record } = entry
  checkFence(record, request.fence)
  const { vmm } = getLive(entry)
  if (record.state !== 'running' || entry.operation) throw wrongState(record, 'running')
  const { diskMib: oldMib, growPending = false } = record
  // A request that arrives late must not make a disk smaller.
  const disk_mib = Math.max(request.disk_mib, oldMib)
  return runOperation(entry, 'resize', request.fence, async (aborted) => {
    const signal = AbortSignal.any([aborted, AbortSignal.timeout(Math.min(request.limit_ms, GROW_LIMIT_MS))])
    moveVm(entry, 'resize', { diskMib: disk_mib })
    try {
      await deps.registry.write(entry.record)
      await crashPoint('host.resize.recorded')
      await refreshActiveDisk(vmm)
      await span('grow disk', () => resizeActiveDisk(vmm.qmp, vmm.record.disk.active, disk_mib))
    } catch (error) {
      await restoreSize(deps, entry, vmm, { diskMib: oldMib, growPending })
      throw new HostError('internal', `failed to grow disk of ${entry.id} to ${disk_mib} MiB: ${errorText(error)}`, {
        cause: error,
      })
    }
    await crashPoint('host.resize.device')
    await span('grow file system', () => growFileSystem(vmm, disk_mib, signal)).catch((error) => {
      aborted.throwIfAborted()
      const message = `the disk of ${entry.id} has ${disk_mib} MiB, but its file system did not grow: ${errorText(error)}`
      throw new HostError('guest_unreachable', message, { cause: error })
    })
    await crashPoint('host.resize.grown')
    if (vmCan('resizeDone', entry.record.state)) await deps.registry.write(moveVm(entry, 'resizeDone', {}))
    await crashPoint('host.resize.done')
    return { disk_mib }
  })
}

/** Unless the disk has grown in spite of the error, or QEMU does not answer: then the record must not be too small. */
async function restoreSize(
  deps: Deps,
  entry: Entry,
  vmm: Vmm,
  old: { diskMib: number; growPending: boolean },
): Promise<void> {
  try {
    if ((await queryDiskMib(vmm.qmp, vmm.record.disk.active)) > old.diskMib) return
    if (toStored(entry.record)) await deps.registry.write(moveVm(entry, 'resizeFailed', old))
  } catch (error) {
    deps.log.error({ err: error, sandbox: entry.id }, 'failed to record that a disk did not grow')
  }
}
