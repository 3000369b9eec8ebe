/** Queries for networks. Each one filters by owner, so another user's network is not found. */

import { notFound } from '@warren/kit/failure'
import type { NetworkDetailView, NetworkMember, NetworkView, PageQuery } from '@warren/protocol'
import { sql } from 'kysely'
import type { Db, Tx } from '../db/connect.ts'
import type { NetworkRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { clampPage } from '../http/pagination.ts'
import { renderTime, visibleAddress } from '../sandboxes/view.ts'

/** By id or by name. An id takes precedence over a name that looks like one. */
export function findNetwork(db: Db | Tx, userId: string, idOrName: string): Promise<NetworkRow | undefined> {
  return db
    .selectFrom('networks')
    .selectAll()
    .where('user_id', '=', userId)
    .where('deleted_at', 'is', null)
    .where((eb) => eb.or([eb('id', '=', idOrName), eb('name', '=', idOrName)]))
    .orderBy(sql`id = ${idOrName}`, 'desc')
    .limit(1)
    .executeTakeFirst()
}

export async function getNetworkView(deps: Deps, userId: string, idOrName: string): Promise<NetworkDetailView> {
  const row = await findNetwork(deps.db, userId, idOrName)
  if (!row) throw notFound('network')
  const members = await listMembers(deps, row.id)
  return { ...viewNetwork(row, members.length), members }
}

export async function listNetworks(
  deps: Deps,
  userId: string,
  query: PageQuery,
): Promise<{ networks: NetworkView[]; total: number; limit: number; offset: number }> {
  const { limit, offset } = clampPage(query)
  const own = deps.db.selectFrom('networks').where('user_id', '=', userId).where('deleted_at', 'is', null)
  const [rows, { total }] = await Promise.all([
    own
      .selectAll()
      .select((eb) =>
        eb
          .selectFrom('network_members')
          .whereRef('network_id', '=', 'networks.id')
          .select((count) => count.fn.countAll<number>().as('n'))
          .as('member_count'),
      )
      .orderBy('created_at', 'desc')
      .orderBy('id', 'desc')
      .limit(limit)
      .offset(offset)
      .execute(),
    own.select((eb) => eb.fn.countAll<number>().as('total')).executeTakeFirstOrThrow(),
  ])
  return { networks: rows.map((row) => viewNetwork(row, row.member_count ?? 0)), total, limit, offset }
}

export const viewNetwork = (row: NetworkRow, memberCount: number): NetworkView => ({
  id: row.id,
  name: row.name,
  created_at: renderTime(row.created_at),
  member_count: memberCount,
})

/** Ordered by the time of joining. */
async function listMembers(deps: Deps, networkId: string): Promise<NetworkMember[]> {
  const rows = await deps.db
    .selectFrom('network_members')
    .innerJoin('sandboxes', 'sandboxes.id', 'network_members.sandbox_id')
    .select(['sandboxes.id', 'sandboxes.name', 'sandboxes.status', 'sandboxes.ip'])
    .where('network_id', '=', networkId)
    .orderBy('joined_at')
    .orderBy('sandboxes.id')
    .execute()
  return rows.map((row) => ({ sandbox_id: row.id, name: row.name, status: row.status, ip: visibleAddress(row) }))
}
