/**
 * Every two seconds each host says what it counted and which revision of its network each VM has. Counts go into the
 * ledger; a VM that is behind is told again: a host that could not be reached, a peer that was destroyed, a host agent
 * that has been restarted since.
 */
import { sql } from 'kysely'
import { recordCounts } from '../bandwidth/record-counts.ts'
import type { Deps } from '../deps.ts'
import { hostAddresses } from '../hosts/heartbeat.ts'
import type { Sweep } from '../jobs/sweep.ts'
import { pushNetworks } from './host-network.ts'

export const reconcileNetworks: Sweep = {
  name: 'reconcile-networks',
  everyMs: 2_000,
  async run(deps) {
    await Promise.all(hostAddresses(deps).map((address) => followHost(deps, address)))
  },
}

async function followHost(deps: Deps, address: string): Promise<void> {
  const told = await deps.hosts
    .clientAt(address)
    .listNetworks()
    .catch(() => undefined) // heartbeat.ts says so.
  if (!told || told.vms.length === 0) return
  await recordCounts(deps.db, told.vms)
  await pushNetworks(deps, await listBehind(deps, told.vms))
}

async function listBehind(deps: Deps, vms: { id: string; revision?: number }[]): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`select s.id
    from jsonb_to_recordset(${JSON.stringify(vms)}::jsonb) as told (id text, revision bigint)
    join sandboxes s on s.id = told.id left join network_revisions r on r.sandbox_id = s.id
    where s.status = 'running' and coalesce(told.revision, -1) < coalesce(r.revision, 1)`.execute(deps.db)
  return rows.map(({ id }) => id)
}
