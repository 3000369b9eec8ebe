/**
 * Makes a healthy deployment the one that is served. One transaction switches the route: a request is sent either to the old
 * sandbox, which may finish what it has begun, or to the new one.
 */
import { crashPoint } from '@warren/kit/crash-point'
import { sql } from 'kysely'
import { lockWallet } from '../payments/pool.ts'
import { ClaimLost, lockProject, moveDeployment, moveInTransaction, type Work } from './work.ts'

export async function promote(work: Work): Promise<void> {
  const { deps, deployment } = work
  await moveDeployment(work, 'promoting')
  await crashPoint('promote.begun')
  await deps.db.transaction().execute(async (tx) => {
    const balance = (await lockWallet(tx, deployment.wallet)) ?? 0n
    const project = await lockProject(tx, deployment.project_id)
    if (project.status === 'deleting' || project.deleted_at) throw new ClaimLost('the project was deleted')
    await moveInTransaction(tx, deps, deployment, 'active', { ready_at: deps.now() })
    if (project.live_deployment_id !== null) {
      await tx
        .updateTable('gateway.sandboxes')
        .set({ drain_until: sql`now() + make_interval(secs => ${deps.config.drainSeconds})` })
        .where('deployment_id', '=', project.live_deployment_id)
        .execute()
    }
    // Without credit it is paused like the others, in the background.
    const isPaid = balance > 0n
    await tx
      .updateTable('gateway.projects')
      .set({
        live_deployment_id: deployment.id,
        url: deps.apps.urlOf(project),
        status: isPaid ? 'active' : 'pending',
        paused_at: isPaid ? null : (project.paused_at ?? deps.now()),
        metered_until: isPaid ? (project.metered_until ?? deps.now()) : null,
      })
      .where('id', '=', project.id)
      .execute()
  })
  await crashPoint('promote.done')
}
