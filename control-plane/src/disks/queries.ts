/** Queries for disks. Each one filters by owner, so another user's disk is not found. */
import { notFound } from '@warren/kit/failure'
import type { DiskView, PageQuery } from '@warren/protocol'
import type { Db, Tx } from '../db/connect.ts'
import type { DiskRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { clampPage } from '../http/pagination.ts'
import { renderTime } from '../sandboxes/view.ts'

/** By id or by name. No name looks like an id. */
export function findDisk(db: Db | Tx, userId: string, idOrName: string): Promise<DiskRow | undefined> {
  return db
    .selectFrom('disks')
    .selectAll()
    .where('user_id', '=', userId)
    .where('deleted_at', 'is', null)
    .where((eb) => eb.or([eb('id', '=', idOrName), eb('name', '=', idOrName)]))
    .executeTakeFirst()
}

export async function getDisk(db: Db | Tx, userId: string, idOrName: string): Promise<DiskRow> {
  const disk = await findDisk(db, userId, idOrName)
  if (!disk) throw notFound('disk')
  return disk
}

/**
 * `share` for those who attach it, `no key update` for those who change or delete it: each then sees what the others have done.
 * Throws 404 if it has been deleted since it was found.
 */
export async function lockDisk(tx: Tx, id: string, mode: 'share' | 'no key update'): Promise<DiskRow> {
  const query = tx.selectFrom('disks').selectAll().where('id', '=', id).where('deleted_at', 'is', null)
  const disk = await (mode === 'share' ? query.forShare() : query.forNoKeyUpdate()).executeTakeFirst()
  if (!disk) throw notFound('disk')
  return disk
}

export async function listDisks(
  deps: Deps,
  userId: string,
  query: PageQuery,
): Promise<{ disks: DiskView[]; total: number; limit: number; offset: number }> {
  const { limit, offset } = clampPage(query)
  const own = deps.db.selectFrom('disks').where('user_id', '=', userId).where('deleted_at', 'is', null)
  const [rows, { total }] = await Promise.all([
    own.selectAll().orderBy('created_at', 'desc').orderBy('id', 'desc').limit(limit).offset(offset).execute(),
    own.select((eb) => eb.fn.countAll<number>().as('total')).executeTakeFirstOrThrow(),
  ])
  return { disks: rows.map(viewDisk), total, limit, offset }
}

export const viewDisk = ({ id, name, bucket, endpoint, region, use_path_style, created_at }: DiskRow): DiskView => ({
  id,
  name,
  kind: 's3',
  config: { bucket, endpoint, region, use_path_style },
  created_at: renderTime(created_at),
})
