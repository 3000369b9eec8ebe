/**
 * Members of networks, and how a new sandbox becomes one while it is created.
 *
 * The lock order (sandboxes/reservations.ts) has network revisions before the host, so the revisions of the peers are
 * raised before the new sandbox is placed. The peers see the new member when the transaction commits.
 */
import { badField } from '@warren/kit/failure'
import type { Tx } from '../db/connect.ts'
import { raiseRevisions } from './host-network.ts'
import { findNetwork } from './queries.ts'

/** Locks the named networks, raises the revisions of their members and returns their ids; 400 if one does not exist. */
export async function lockNetworks(tx: Tx, userId: string, names: readonly string[]): Promise<string[]> {
  const ids = new Set<string>()
  for (const name of names) {
    const network = await findNetwork(tx, userId, name)
    if (!network) throw networkNotFound(name)
    ids.add(network.id)
  }
  if (ids.size === 0) return []
  const locked = await tx
    .selectFrom('networks')
    .select('id')
    .where('id', 'in', [...ids])
    .where('deleted_at', 'is', null)
    .orderBy('id')
    .forNoKeyUpdate()
    .execute()
  if (locked.length < ids.size) throw networkNotFound(names[0]!)
  await raiseRevisions(tx, await listMemberIds(tx, [...ids]))
  return [...ids]
}

export async function addToNetworks(tx: Tx, networkIds: readonly string[], sandboxId: string): Promise<void> {
  if (networkIds.length === 0) return
  const members = networkIds.map((network_id) => ({ network_id, sandbox_id: sandboxId }))
  await tx.insertInto('network_members').values(members).execute()
}

export async function listMemberIds(tx: Tx, networkIds: readonly string[]): Promise<string[]> {
  const rows = await tx
    .selectFrom('network_members')
    .select('sandbox_id')
    .distinct()
    .where('network_id', 'in', [...networkIds])
    .execute()
  return rows.map((row) => row.sandbox_id)
}

const networkNotFound = (name: string) => badField({ networks: `network not found: ${name.slice(0, 100)}` })
