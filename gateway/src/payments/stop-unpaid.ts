/**
 * Stops what a wallet can no longer pay for. The rows say so; the apps are stopped, and started again after a payment, by
 * the deployments in the background.
 */
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import { IS_CHARGED, IS_UNFINISHED } from '../projects/statuses.ts'

/** The caller holds the lock of the wallet, whose pool is empty. Apps pause: `pending`, and their URL stays. */
export async function pauseProjects(tx: Tx, wallet: string, now: Date): Promise<void> {
  await tx
    .updateTable('gateway.projects')
    .set({ status: 'pending', paused_at: now, metered_until: null })
    .where('wallet', '=', wallet)
    .where('status', 'in', IS_CHARGED)
    .where('deleted_at', 'is', null)
    .execute()
  await sql`update gateway.wallets set unpaid_since = coalesce(unpaid_since, ${now})
    where address = ${wallet}`.execute(tx)
}

/** A payment was taken back: deployments that have not finished were started with money that does not exist. */
export async function cancelDeployments(tx: Tx, wallet: string, reason: string): Promise<void> {
  // Projects before deployments, as everywhere (deployments/work.ts).
  await tx.selectFrom('gateway.projects').select('id').where('wallet', '=', wallet).orderBy('id').forUpdate().execute()
  const cancelled = await tx
    .updateTable('gateway.deployments')
    .set({ status: 'cancelled', reason })
    .where('wallet', '=', wallet)
    .where('status', 'in', IS_UNFINISHED)
    .returning('project_id')
    .execute()
  if (cancelled.length === 0) return
  await tx
    .updateTable('gateway.projects')
    .set({ status: 'failed' })
    .where(
      'id',
      'in',
      cancelled.map((row) => row.project_id),
    )
    .where('url', 'is', null)
    .where('status', '!=', 'deleting')
    .execute()
}
