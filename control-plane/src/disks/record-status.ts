/** Stores the status of mounts as hosts report it. Only changes are written. */
import type { HostMounts } from '@warren/protocol'
import { sql } from 'kysely'
import type { Db } from '../db/connect.ts'
import { cleanGuestText } from './guest-text.ts'

/**
 * A status is stored if it is about the revision that the mount has. What a host has forgotten, because it was restarted, is not
 * mounted until it reports so again.
 *
 * The texts come from guests. One that the database cannot store must not keep the others from being stored.
 */
export async function recordMounts(db: Db, vms: HostMounts['vms']): Promise<void> {
  if (vms.length === 0) return
  const hosts = vms.map(({ id, revision }) => ({ sandbox_id: id, revision }))
  const reports = vms.flatMap(({ id: sandbox_id, mounts }) =>
    mounts.map(({ id, revision, status, mount_error }) => {
      const error = status === 'failed' ? cleanGuestText(mount_error ?? '') || 'the mount failed' : null
      return { sandbox_id, id, revision, status, error }
    }),
  )
  await sql`with vms as (
      select * from jsonb_to_recordset(${JSON.stringify(hosts)}::jsonb) as v (sandbox_id text, revision bigint)
    ), reports as (
      select * from jsonb_to_recordset(${JSON.stringify(reports)}::jsonb)
        as r (sandbox_id text, id text, revision integer, status text, error text)
    ), changed as (
      select a.id, coalesce(r.status, 'pending') as status, r.error
      from disk_attachments a join vms v on v.sandbox_id = a.sandbox_id
        join mount_revisions m on m.sandbox_id = a.sandbox_id left join reports r on r.id = a.id and r.sandbox_id = a.sandbox_id
      where case when r.id is null then a.status = 'mounted' and coalesce(v.revision >= m.revision, true)
          else r.revision = a.revision end
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
