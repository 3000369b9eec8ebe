/**
 * Replaces the credentials of a disk, once a probe has succeeded with the new ones. They reach running mounts before the
 * response, if their hosts answer; the others get them from a sweep (reconcile.ts), paused sandboxes when they resume. Mounts
 * that have failed are tried again.
 */
import { crashPoint } from '@warren/kit/crash-point'
import { checkDiskCredentials, type DiskCredentials, type DiskView } from '@warren/protocol'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { DiskRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import type { CallerUser } from '../http/caller.ts'
import { diskCredentialsPlace } from '../secrets/places.ts'
import { checkFields } from './create.ts'
import { pushMounts, raiseMountRevisions } from './host-mounts.ts'
import { probeBucket } from './probe.ts'
import { getDisk, lockDisk, viewDisk } from './queries.ts'

export async function rotateDisk(
  deps: Deps,
  user: CallerUser,
  idOrName: string,
  credentials: DiskCredentials,
): Promise<DiskView> {
  const disk = await getDisk(deps.db, user.id, idOrName)
  checkFields(checkDiskCredentials(credentials))
  checkFields(await probeBucket(deps, user, disk, credentials))
  const sandboxIds = await deps.db.transaction().execute((tx) => replaceCredentials(deps, tx, disk, credentials))
  await crashPoint('disk-rotate.committed')
  await pushMounts(deps, sandboxIds)
  await crashPoint('disk-rotate.pushed')
  return viewDisk(disk)
}

/** Returns the sandboxes that it is attached to. */
async function replaceCredentials(
  deps: Deps,
  tx: Tx,
  { id }: DiskRow,
  credentials: DiskCredentials,
): Promise<string[]> {
  await lockDisk(tx, id, 'no key update')
  const sealed = deps.secrets.seal(diskCredentialsPlace(id), JSON.stringify(credentials))
  await tx.updateTable('disks').set({ credentials: sealed }).where('id', '=', id).execute()
  const { rows } = await sql<{ sandbox_id: string }>`with locked as (
      select id from disk_attachments where disk_id = ${id} order by id for no key update)
    update disk_attachments a set revision = a.revision + 1, error = null,
      status = case when a.status = 'failed' then 'pending' else a.status end
    from locked where a.id = locked.id
    returning a.sandbox_id`.execute(tx)
  const sandboxIds = [...new Set(rows.map((row) => row.sandbox_id))]
  await raiseMountRevisions(tx, sandboxIds)
  return sandboxIds
}
