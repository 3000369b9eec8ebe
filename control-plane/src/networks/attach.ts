/**
 * Adds a running sandbox to a network; if it is a member already, nothing changes. The response is sent when the hosts of
 * all members have the change, so that traffic can flow from then on.
 */
import { notFound, wrongState } from '@warren/kit/failure'
import { sql } from 'kysely'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { emittingNetwork } from './emit.ts'
import { pushNetworks, raiseRevisions } from './host-network.ts'
import { listMemberIds } from './members.ts'
import { findNetwork } from './queries.ts'

export async function attachNetwork(deps: Deps, sandbox: SandboxRow, idOrName: string): Promise<void> {
  const changed = await deps.db.transaction().execute(async (tx) => {
    const network = await findNetwork(tx, sandbox.user_id, idOrName)
    if (!network) throw notFound('network')
    const row = await tx
      .selectFrom('sandboxes')
      .select('status')
      .where('id', '=', sandbox.id)
      .forNoKeyUpdate()
      .executeTakeFirstOrThrow()
    if (row.status !== 'running') throw wrongState(row.status, 'running')
    const { rows } = await sql`select from networks where id = ${network.id} and deleted_at is null
      for no key update`.execute(tx)
    if (rows.length === 0) throw notFound('network')
    const joined = await sql`insert into network_members (network_id, sandbox_id) values (${network.id}, ${sandbox.id})
      on conflict do nothing returning ${emittingNetwork('network.attach', network, sandbox.id)}`.execute(tx)
    if (joined.rows.length === 0) return []
    const members = await listMemberIds(tx, [network.id])
    await raiseRevisions(tx, members)
    return members
  })
  await pushNetworks(deps, changed)
}
