/**
 * Binds a host in the database to the data directory that has the VMs of its sandboxes.
 *
 * With a database elsewhere (DATABASE_URL), a start with another data directory would find no VM on the host, and mark all its
 * sandboxes as failed. A variable that is missing in another shell is enough for that. So the first start writes the id of its data
 * directory to the database, and later starts with another one fail, unless the host has nothing to lose.
 */
import { sql } from 'kysely'
import type { Db } from '../db/connect.ts'

export type DataDirectory = {
  hostId: string
  id: string
  /** For messages. */
  folder: string
}

type Bound = Pick<DataDirectory, 'id' | 'folder'>

/** To be called before anything compares the database with the host. `adopts`: although sandboxes are given up by it. */
export async function bindDataDirectory(db: Db, wanted: DataDirectory, adopts: boolean): Promise<void> {
  const { hostId, id, folder } = wanted
  await db.transaction().execute(async (tx) => {
    await sql`insert into data_directories (host_id, id, folder) values (${hostId}, ${id}, ${folder})
      on conflict do nothing`.execute(tx)
    const { rows } = await sql<Bound>`select id, folder from data_directories where host_id = ${hostId}
      for update`.execute(tx)
    const bound = rows[0]!
    if (bound.id !== id && !adopts) await requireNothingToLose(tx, bound, wanted)
    await sql`update data_directories set id = ${id}, folder = ${folder} where host_id = ${hostId}`.execute(tx)
  })
}

async function requireNothingToLose(tx: Db, bound: Bound, { hostId, folder }: DataDirectory): Promise<void> {
  const { rows } = await sql<{ sandboxes: number; templates: number }>`select
    (select count(*) from sandboxes where host_id = ${hostId} and status not in ('destroyed', 'failed')) as sandboxes,
    (select count(*) from templates where host_id = ${hostId} and status = 'ready' and deleted_at is null) as templates`.execute(
    tx,
  )
  const { sandboxes, templates } = rows[0]!
  if (sandboxes === 0 && templates === 0) return
  throw new Error(
    `the database belongs to another data directory, which was ${bound.folder}: its sandboxes (${sandboxes}) and templates ` +
      `(${templates}) have their files there, not in ${folder}. None of them was changed. Set WARREN_DATA_DIR to where it is now. If it ` +
      'no longer exists, start once with WARREN_ADOPT_DATABASE=on, which gives them up',
  )
}
