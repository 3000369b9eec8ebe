/** Stores the status of mounts as hosts report it. Only changes are written. */
import { type HostMounts, truncateMountError } from '@warren/protocol'
import { sql } from 'kysely'
import type { Db } from '../db/connect.ts'

/**
 * A status is stored if it is about the revision that the mount has. A mount that a host should have and does not report is
 * pending: the host was restarted and forgot it.
 */
export async function recordMounts(db: Db, vms: HostMounts['vms']): Promise<void> {
  if (vms.length === 0) return
  const hosts = vms.map(({ id, revision }) => ({ sandbox_id: id, revision }))
  const reports = vms.flatMap(({ mounts }) =>
    mounts.map(({ id, revision, status, mount_error }) => {
      const error = status === 'failed' ? truncateMountError(mount_error || 'the mount failed') : null
      return { id, revision, status, error }
    }),
  )
  await sql`with vms as (
      select * from jsonb_to_recordset(${JSON.stringify(hosts)}::jsonb) as v (sandbox_id text, revision bigint)
    ), reports as (
      select * from jsonb_to_recordset(${JSON.stringify(reports)}::jsonb)
        as r (id text, revision integer, status text, error text)
    ), changed as (
      select a.id, coalesce(r.status, 'pending') as status, r.error
      from disk_attachments a join vms v on v.sandbox_id = a.sandbox_id
        join mount_revisions m on m.sandbox_id = a.sandbox_id left join reports r on r.id = a.id
      where case when r.id is null then coalesce(v.revision >= m.revision, true) else r.revision = a.revision end
        and (a.status, a.error) is distinct from (coalesce(r.status, 'pending'), r.error)
      -- The same order everywhere, so that two statements cannot deadlock.
      order by a.id for no key update of a
    )
    update disk_attachments a set status = changed.status, error = changed.error
    from changed where a.id = changed.id`.execute(db)
}

/** The host of the sandbox cannot mount disks, although the one where it was created could. */
export async function recordUnavailable(db: Db, sandboxId: string): Promise<void> {
  await sql`with locked as (
      select id from disk_attachments
      where sandbox_id = ${sandboxId} and error is distinct from ${UNAVAILABLE} order by id for no key update)
    update disk_attachments a set status = 'failed', error = ${UNAVAILABLE} from locked where a.id = locked.id`.execute(
    db,
  )
}

const UNAVAILABLE = 'disks cannot be mounted on this host; ask the operator'
