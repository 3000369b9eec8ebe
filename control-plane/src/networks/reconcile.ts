/**
 * Every two seconds, each host reports the bytes it counted and the network revision of each VM. The counts are stored,
 * and VMs with an old revision get the current network: their host was unreachable or has been restarted, or a peer was
 * destroyed.
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
    await Promise.all(hostAddresses(deps).map((address) => reconcileHost(deps, address)))
  },
}

async function reconcileHost(deps: Deps, address: string): Promise<void> {
  const report = await deps.hosts
    .clientAt(address)
    .listNetworks()
    .catch(() => undefined) // heartbeat.ts reports unreachable hosts.
  if (!report || report.vms.length === 0) return
  await recordCounts(deps.db, report.vms)
  await pushNetworks(deps, await listOutdated(deps, report.vms))
}

async function listOutdated(deps: Deps, vms: { id: string; revision?: number }[]): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`select s.id
    from jsonb_to_recordset(${JSON.stringify(vms)}::jsonb) as reported (id text, revision bigint)
    join sandboxes s on s.id = reported.id left join network_revisions r on r.sandbox_id = s.id
    where s.status = 'running' and coalesce(reported.revision, -1) < coalesce(r.revision, 1)`.execute(deps.db)
  return rows.map(({ id }) => id)
}
