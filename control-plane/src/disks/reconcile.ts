/**
 * Every second, each host reports the mounts of its VMs: hosts learn of changes from their guests and check every mount each
 * 30 s. The statuses are stored, and VMs with an old revision get the current mounts: their host was unreachable or has been
 * restarted, or the process that made the change was killed.
 */
import { sql } from 'kysely'
import type { Deps } from '../deps.ts'
import { hostAddresses } from '../hosts/heartbeat.ts'
import type { Sweep } from '../jobs/sweep.ts'
import { pushMounts } from './host-mounts.ts'
import { recordMounts } from './record-status.ts'

export const reconcileMounts: Sweep = {
  name: 'reconcile-mounts',
  everyMs: 1_000,
  async run(deps) {
    const wanted = await listWanted(deps)
    if (wanted.size === 0) return
    await Promise.all(hostAddresses(deps).map((address) => reconcileHost(deps, address, wanted)))
  },
}

/** The revisions of running sandboxes that have disks, or had some. */
async function listWanted(deps: Deps): Promise<Map<string, number>> {
  const { rows } = await sql<{ id: string; revision: number }>`select s.id, r.revision
    from mount_revisions r join sandboxes s on s.id = r.sandbox_id where s.status = 'running'`.execute(deps.db)
  return new Map(rows.map(({ id, revision }) => [id, revision]))
}

async function reconcileHost(deps: Deps, address: string, wanted: ReadonlyMap<string, number>): Promise<void> {
  const report = await deps.hosts
    .clientAt(address)
    .listMounts()
    .catch(() => undefined) // heartbeat.ts reports unreachable hosts.
  const vms = (report?.vms ?? []).filter(({ id }) => wanted.has(id))
  await recordMounts(deps.db, vms)
  const outdated = vms.filter(({ id, revision = -1 }) => revision < wanted.get(id)!)
  for (const { id } of outdated) pushInBackground(deps, id)
}

/** Pushes that are under way. A mount that is flushed before it is removed takes long, and must not hold up the others. */
const underWay = new Set<string>()

function pushInBackground(deps: Deps, id: string): void {
  if (underWay.has(id)) return
  underWay.add(id)
  void pushMounts(deps, [id])
    .catch((error) => deps.log.warn({ err: error, sandbox: id }, 'failed to store the status of mounts, will retry'))
    .finally(() => underWay.delete(id))
}
