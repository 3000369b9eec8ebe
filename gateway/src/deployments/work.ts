/**
 * A deployment that this process has claimed. The claim is a lease: it is renewed while the process lives, and another process
 * takes over when it ends. Every write checks that the claim still holds and that the deployment was not cancelled, so that a
 * process that was slow cannot undo what another one did.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { DeploymentRow, ProjectRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { createMask } from '../logs/mask.ts'
import { type LogWriter, openLog } from '../logs/writer.ts'
import { type DeploymentStatus, IS_UNFINISHED } from '../projects/statuses.ts'
import type { Secrets } from '../uploads/settings.ts'

export type Work = {
  deps: Deps
  deployment: DeploymentRow
  project: ProjectRow
  secrets: Secrets
  log: LogWriter
  /** Aborted when the claim is lost, the deployment is cancelled, or the process stops. */
  signal: AbortSignal
}

/** The deployment is cancelled, deleted, or was taken over. The sweep cleans up. */
export class ClaimLost extends Error {
  override name = 'ClaimLost'
}

/** The process stops. Another one, or the next start, continues. */
export class Stopping extends Error {
  override name = 'Stopping'
}

const RENEWALS_PER_LEASE = 5

export async function openWork(deps: Deps, deployment: DeploymentRow, signal: AbortSignal): Promise<Work> {
  const project = await deps.db
    .selectFrom('gateway.projects')
    .selectAll()
    .where('id', '=', deployment.project_id)
    .executeTakeFirstOrThrow()
  const none: Secrets = { runEnvs: null, buildVars: null }
  const secrets = deployment.secrets ? (deps.secretBox.open(deployment.id, deployment.secrets) as Secrets) : none
  return { deps, deployment, project, secrets, log: await openLog(deps, deployment.id, createMask(secrets)), signal }
}

/** Renews the claim until `controller` is aborted, and aborts it when the claim is lost. */
export async function keepClaim(deps: Deps, deployment: DeploymentRow, controller: AbortController): Promise<void> {
  const everyMs = (deps.config.leaseSeconds * 1_000) / RENEWALS_PER_LEASE
  while (!controller.signal.aborted) {
    await delay(everyMs, undefined, { signal: controller.signal }).catch(() => {})
    if (controller.signal.aborted) return
    try {
      const { numUpdatedRows } = await deps.db
        .updateTable('gateway.deployments')
        .set({ claimed_until: sql`now() + make_interval(secs => ${deps.config.leaseSeconds})` })
        .where('id', '=', deployment.id)
        .where('claimed_by', '=', deps.processId)
        .where('attempt', '=', deployment.attempt)
        .where('status', 'in', IS_UNFINISHED)
        .executeTakeFirstOrThrow()
      if (numUpdatedRows === 0n) controller.abort(new ClaimLost('the deployment was cancelled'))
    } catch (error) {
      deps.log.warn({ err: error, deployment: deployment.id }, 'failed to renew the claim of a deployment')
    }
  }
}

type Changes = Partial<Pick<DeploymentRow, 'reason' | 'port' | 'image' | 'ready_at'>> & { run?: string }

/** Throws ClaimLost. The project has the same status until one of its deployments has succeeded. */
export async function moveDeployment(
  { deps, deployment }: Work,
  status: DeploymentStatus,
  changes: Changes = {},
): Promise<void> {
  await deps.db.transaction().execute(async (tx) => {
    await lockProject(tx, deployment.project_id)
    await moveInTransaction(tx, deps, deployment, status, changes)
    if (status === 'cancelled') return
    await tx
      .updateTable('gateway.projects')
      .set({ status })
      .where('id', '=', deployment.project_id)
      .where('live_deployment_id', 'is', null)
      .where('status', '!=', 'deleting')
      .execute()
  })
}

/** Rows are locked in the order wallet, project, deployment, everywhere: other orders would deadlock. */
export async function lockProject(tx: Tx, projectId: string): Promise<ProjectRow> {
  return tx.selectFrom('gateway.projects').selectAll().where('id', '=', projectId).forUpdate().executeTakeFirstOrThrow()
}

export async function moveInTransaction(
  tx: Tx,
  deps: Deps,
  { id, attempt }: DeploymentRow,
  status: DeploymentStatus,
  changes: Changes,
): Promise<void> {
  const { numUpdatedRows } = await tx
    .updateTable('gateway.deployments')
    .set({ status, ...changes })
    .where('id', '=', id)
    .where('claimed_by', '=', deps.processId)
    .where('attempt', '=', attempt)
    .where('status', 'in', IS_UNFINISHED)
    .executeTakeFirstOrThrow()
  if (numUpdatedRows === 0n) throw new ClaimLost('the deployment was cancelled')
}
