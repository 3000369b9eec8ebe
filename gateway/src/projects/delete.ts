/** Deletes a project: it is unreachable at once, and its sandboxes are destroyed in the background. Credit stays. */
import type { Tx } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import { getOwnProject } from './find.ts'
import { IS_UNFINISHED } from './statuses.ts'

/** Repeated while the project is being deleted, it has the same answer. */
export async function deleteProject(deps: Deps, wallet: string, projectId: string) {
  await deps.db.transaction().execute(async (tx) => {
    const project = await getOwnProject(tx, wallet, projectId)
    if (project.status !== 'deleting') await deleteProjectRow(tx, project.id, 'the project was deleted')
  })
  return { projectId: projectId.toLowerCase(), status: 'deleted' as const }
}

export async function deleteProjectRow(tx: Tx, projectId: string, reason: string): Promise<void> {
  await tx
    .updateTable('gateway.projects')
    .set({ status: 'deleting', metered_until: null, paused_at: null })
    .where('id', '=', projectId)
    .where('deleted_at', 'is', null)
    .execute()
  await tx
    .updateTable('gateway.deployments')
    .set({ status: 'cancelled', reason })
    .where('project_id', '=', projectId)
    .where('status', 'in', IS_UNFINISHED)
    .execute()
}
