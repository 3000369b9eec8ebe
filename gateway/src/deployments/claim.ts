/** Chooses the next deployment that this process carries out. */
import { sql } from 'kysely'
import type { DeploymentRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { IS_UNFINISHED } from '../projects/statuses.ts'
import { lockProject } from './work.ts'

/** Serialises claims, so that the numbers of running deployments are exact. */
const CLAIM_LOCK = 7_236_011

/**
 * The oldest one that no process works on. One that waits in the queue needs a place, by the limits over all wallets and per
 * wallet; one that was begun has its place.
 */
export async function claimNext(deps: Deps): Promise<DeploymentRow | undefined> {
  const { buildsMax, buildsPerWallet } = deps.config
  return deps.db.transaction().execute(async (tx) => {
    await sql`select pg_advisory_xact_lock(${CLAIM_LOCK})`.execute(tx)
    const { rows } = await sql<{ id: string; project_id: string }>`
      with begun as (
        select wallet from gateway.deployments where status in ('pending', 'building', 'deploying', 'promoting'))
      select d.id, d.project_id from gateway.deployments d
      where d.status in ('queued', 'pending', 'building', 'deploying', 'promoting')
        and (d.claimed_until is null or d.claimed_until < now())
        and (d.status <> 'queued' or (
          (select count(*) from begun) < ${buildsMax}
          and (select count(*) from begun where begun.wallet = d.wallet) < ${buildsPerWallet}))
      order by d.status = 'queued', d.created_at limit 1`.execute(tx)
    const [next] = rows
    if (!next) return undefined
    await lockProject(tx, next.project_id)
    const claimed = await tx
      .updateTable('gateway.deployments')
      .set({
        claimed_by: deps.processId,
        claimed_until: sql`now() + make_interval(secs => ${deps.config.leaseSeconds})`,
        attempt: sql`attempt + 1`,
        status: sql`case when status = 'queued' then 'pending' else status end`,
        started_at: sql`coalesce(started_at, ${deps.now()})`,
      })
      .where('id', '=', next.id)
      .where('status', 'in', IS_UNFINISHED)
      .returningAll()
      .executeTakeFirst()
    // Cancelled since it was found.
    if (!claimed) return undefined
    await tx
      .updateTable('gateway.projects')
      .set({ status: claimed.status as 'pending' })
      .where('id', '=', claimed.project_id)
      .where('live_deployment_id', 'is', null)
      .where('status', '!=', 'deleting')
      .execute()
    return claimed
  })
}
