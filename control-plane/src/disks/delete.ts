/** Deletes a disk that is not attached, and erases its credentials. An attach at the same time waits for the lock and then finds no disk. */
import { failure } from '@warren/kit/failure'
import { sql } from 'kysely'
import type { Deps } from '../deps.ts'
import { emittingDisk } from './emit.ts'
import { getDisk, lockDisk } from './queries.ts'

export async function deleteDisk(deps: Deps, userId: string, idOrName: string): Promise<void> {
  await deps.db.transaction().execute(async (tx) => {
    const { id } = await getDisk(tx, userId, idOrName)
    const disk = await lockDisk(tx, id, 'no key update')
    const attached = await sql`select from disk_attachments where disk_id = ${id} limit 1`.execute(tx)
    if (attached.rows.length > 0) throw failure('still_attached', 'disk still attached')
    await sql`update disks set deleted_at = now(), credentials = null where id = ${id}
      returning ${emittingDisk('disk.delete', disk)}`.execute(tx)
  })
}
