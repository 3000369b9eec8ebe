/** Stores what a pause could not save in the buckets of a sandbox, for its owner. A resume that succeeds removes it. */
import type { HostUnsavedMount } from '@warren/protocol'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import { cleanDetails } from './details.ts'

export async function recordUnsaved(tx: Tx, sandboxId: string, mounts: readonly HostUnsavedMount[]): Promise<void> {
  const reports = mounts.map(({ id, unsaved }) => ({
    id,
    unsaved: cleanDetails(unsaved ? { unsaved } : {}).unsaved ?? {},
  }))
  await sql`with reports as (
      select * from jsonb_to_recordset(${JSON.stringify(reports)}::jsonb) as r (id text, unsaved jsonb)
    ), changed as (
      select a.id, r.unsaved from disk_attachments a left join reports r on r.id = a.id
      where a.sandbox_id = ${sandboxId} and a.unsaved is distinct from r.unsaved
      -- The same order everywhere, so that two statements cannot deadlock.
      order by a.id for no key update of a
    )
    update disk_attachments a set unsaved = changed.unsaved from changed where a.id = changed.id`.execute(tx)
}

/** In the commit of a resume, and not before: one that fails changes nothing. The guest saves what is left from now on. */
export async function clearUnsaved(tx: Tx, sandboxId: string): Promise<void> {
  await sql`with locked as (
      select id from disk_attachments where sandbox_id = ${sandboxId} and unsaved is not null order by id for no key update)
    update disk_attachments a set unsaved = null from locked where a.id = locked.id`.execute(tx)
}
