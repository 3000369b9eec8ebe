/**
 * Says in the status reason of a running sandbox that its guest is stopped because the disk of its host is full. A reason that it
 * has already, such as why it could not be paused, follows.
 */
import type { HostVm } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'

export const WAITS_FOR_DISK = 'stopped until the disk of the host has space again; nothing that it wrote is lost'
const SEPARATOR = '. Before: '

type Row = Pick<SandboxRow, 'id' | 'fence' | 'status' | 'status_reason'>

/** Not a move: it still runs, and every operation on it works as before. */
export async function noteWaiting(deps: Deps, row: Row, vm: HostVm | undefined): Promise<void> {
  if (row.status !== 'running' || vm?.state !== 'running') return
  const waits = vm.waits_for_disk === true
  if (waits === (row.status_reason?.startsWith(WAITS_FOR_DISK) ?? false)) return
  await deps.db
    .updateTable('sandboxes')
    .set({ status_reason: waits ? addNote(row.status_reason) : removeNote(row.status_reason) })
    .where('id', '=', row.id)
    .where('fence', '=', row.fence)
    .where('status', '=', 'running')
    .execute()
}

const addNote = (reason: string | null): string =>
  reason === null ? WAITS_FOR_DISK : `${WAITS_FOR_DISK}${SEPARATOR}${reason}`

const removeNote = (reason: string | null): string | null =>
  reason?.slice(WAITS_FOR_DISK.length + SEPARATOR.length) || null
