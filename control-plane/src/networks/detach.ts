/** Removes a sandbox from a network, in any status. Its open flows to the other members are dropped. */
import { notFound } from '@warren/kit/failure'
import { sql } from 'kysely'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { emittingNetwork } from './emit.ts'
import { pushNetworks, raiseRevisions } from './host-network.ts'
import { listMemberIds } from './members.ts'
import { findNetwork } from './queries.ts'

export async function detachNetwork(deps: Deps, sandbox: SandboxRow, idOrName: string): Promise<void> {
  const changed = await deps.db.transaction().execute(async (tx) => {
    const network = await findNetwork(tx, sandbox.user_id, idOrName)
    if (!network) throw notFound('network')
    await sql`select from networks where id = ${network.id} for no key update`.execute(tx)
    const left = await sql`delete from network_members
      where network_id = ${network.id} and sandbox_id = ${sandbox.id}
      returning ${emittingNetwork('network.detach', network, sandbox.id)}`.execute(tx)
    if (left.rows.length === 0) throw notFound('network')
    const members = [sandbox.id, ...(await listMemberIds(tx, [network.id]))]
    await raiseRevisions(tx, members)
    return members
  })
  await pushNetworks(deps, changed)
}
