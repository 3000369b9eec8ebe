/** Deletes a network without members. A sandbox that joins at the same time waits for the lock and then finds no network. */
import { failure, notFound } from '@warren/kit/failure'
import { sql } from 'kysely'
import type { Deps } from '../deps.ts'
import { emittingNetwork } from './emit.ts'
import { findNetwork } from './queries.ts'

export async function deleteNetwork(deps: Deps, userId: string, idOrName: string): Promise<void> {
  await deps.db.transaction().execute(async (tx) => {
    const network = await findNetwork(tx, userId, idOrName)
    if (!network) throw notFound('network')
    const { rows } = await sql`select from networks where id = ${network.id} and deleted_at is null
      for no key update`.execute(tx)
    if (rows.length === 0) throw notFound('network')
    const members = await sql`select from network_members where network_id = ${network.id} limit 1`.execute(tx)
    if (members.rows.length > 0) throw failure('has_members', 'network still has members')
    await sql`update networks set deleted_at = now() where id = ${network.id}
      returning ${emittingNetwork('network.delete', network)}`.execute(tx)
  })
}
