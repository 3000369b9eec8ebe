/** Writes the rows of an accepted deployment. An unfinished older one of the project is cancelled. */
import { randomUUID } from 'node:crypto'
import type { Tx } from '../db/connect.ts'
import type { ProjectRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import type { ParsedBody } from '../uploads/parse-body.ts'
import type { Bought } from './situation.ts'
import { IS_UNFINISHED } from './statuses.ts'

export async function writeRows(
  tx: Tx,
  deps: Deps,
  wallet: string,
  body: ParsedBody,
  existing: ProjectRow | undefined,
): Promise<Bought> {
  const projectId = existing ? await updateProject(tx, existing, body) : await insertProject(tx, deps, wallet, body)
  await tx
    .updateTable('gateway.deployments')
    .set({ status: 'cancelled', reason: 'superseded' })
    .where('project_id', '=', projectId)
    .where('status', 'in', IS_UNFINISHED)
    .execute()
  const deploymentId = randomUUID()
  const hasSecrets = body.secrets.runEnvs !== null || body.secrets.buildVars !== null
  await tx
    .insertInto('gateway.deployments')
    .values({
      id: deploymentId,
      project_id: projectId,
      wallet,
      status: 'queued',
      reason: null,
      body_digest: body.bodyDigest,
      upload_digest: body.uploadDigest,
      settings: JSON.stringify(body.settings),
      secrets: hasSecrets ? deps.secretBox.seal(deploymentId, body.secrets) : null,
      created_at: deps.now(),
    })
    .execute()
  return { projectId, deploymentId }
}

async function insertProject(tx: Tx, deps: Deps, wallet: string, body: ParsedBody): Promise<string> {
  const id = randomUUID()
  await tx
    .insertInto('gateway.projects')
    .values({
      id,
      wallet,
      unique_name: body.uniqueName,
      display_name: body.displayName,
      description: body.description,
      status: 'queued',
      url: null,
      paused_at: null,
      metered_until: null,
      created_at: deps.now(),
      deleted_at: null,
    })
    .execute()
  return id
}

/** A project whose app is reachable keeps its status: the old version serves until the new one is healthy. */
async function updateProject(tx: Tx, project: ProjectRow, body: ParsedBody): Promise<string> {
  const isServed = project.url !== null
  await tx
    .updateTable('gateway.projects')
    .set({
      display_name: body.displayName,
      description: body.description,
      ...(isServed ? {} : { status: 'queued' as const }),
    })
    .where('id', '=', project.id)
    .execute()
  return project.id
}
