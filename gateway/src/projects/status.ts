import type { Deps } from '../deps.ts'
import { getOwnDeployment } from './find.ts'

export type StatusAnswer =
  | { status: 'deploying'; deployment_id: string; deployment_status: string; message: string }
  | { status: 'ready'; deployment_id: string; endpoint: string }
  | { status: 'failed'; deployment_id: string; deployment_status: string; reason: string }

export async function getDeploymentStatus(
  deps: Deps,
  wallet: string,
  projectId: string,
  deploymentId: string,
): Promise<StatusAnswer> {
  const row = await getOwnDeployment(deps.db, wallet, { projectId, deploymentId })
  const deployment_id = deploymentId.toLowerCase()
  if (row.status === 'active') return { status: 'ready', deployment_id, endpoint: row.url! }
  if (row.status === 'failed' || row.status === 'cancelled') {
    return { status: 'failed', deployment_id, deployment_status: row.status, reason: row.reason ?? row.status }
  }
  return { status: 'deploying', deployment_id, deployment_status: row.status, message: 'Deployment in progress' }
}
