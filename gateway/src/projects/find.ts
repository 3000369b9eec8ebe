import { sql } from 'kysely'
import type { Db, Tx } from '../db/connect.ts'
import type { ProjectRow } from '../db/schema.ts'
import { forbidden, notFound } from '../http/errors.ts'
import { SHARES_CREDIT } from './statuses.ts'

/** By name in any spelling, of any wallet. A project that is being deleted still has its name. */
export const findProjectByName = (db: Db | Tx, uniqueName: string): Promise<ProjectRow | undefined> =>
  db
    .selectFrom('gateway.projects')
    .selectAll()
    .where(sql<string>`lower(unique_name)`, '=', uniqueName.toLowerCase())
    .where('deleted_at', 'is', null)
    .executeTakeFirst()

/** How many projects of the wallet use its credit, without the one that is being deployed. */
export async function countOtherActive(db: Db | Tx, wallet: string, projectId: string | undefined): Promise<number> {
  let query = db
    .selectFrom('gateway.projects')
    .select(sql<number>`count(*)::int`.as('count'))
    .where('wallet', '=', wallet)
    .where('deleted_at', 'is', null)
    .where('status', 'in', SHARES_CREDIT)
  if (projectId !== undefined) query = query.where('id', '!=', projectId)
  return (await query.executeTakeFirstOrThrow()).count
}

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i

/** 404 for what does not exist, 403 for what belongs to another wallet: ids are random, so that reveals nothing. */
export async function getOwnProject(db: Db | Tx, wallet: string, projectId: string): Promise<ProjectRow> {
  if (!UUID.test(projectId)) throw notFound()
  const row = await db
    .selectFrom('gateway.projects')
    .selectAll()
    .where('id', '=', projectId)
    .where('deleted_at', 'is', null)
    .$if(db.isTransaction, (query) => query.forUpdate())
    .executeTakeFirst()
  if (!row) throw notFound()
  if (row.wallet !== wallet) throw forbidden()
  return row
}

export async function getOwnDeployment(
  db: Db,
  wallet: string,
  { projectId, deploymentId }: { projectId: string; deploymentId: string },
) {
  if (!UUID.test(projectId) || !UUID.test(deploymentId)) throw notFound()
  // In one statement: a promotion changes both rows.
  const row = await db
    .selectFrom('gateway.deployments')
    .innerJoin('gateway.projects', 'gateway.projects.id', 'gateway.deployments.project_id')
    .select(['gateway.deployments.status', 'reason', 'url', 'gateway.projects.wallet as owner'])
    .where('gateway.deployments.id', '=', deploymentId)
    .where('project_id', '=', projectId)
    .where('deleted_at', 'is', null)
    .executeTakeFirst()
  if (!row) throw notFound()
  if (row.owner !== wallet) throw forbidden()
  return row
}
