/** The limits of one wallet. They are checked before any payment is looked at: a refusal must not cost anything. */
import { sql } from 'kysely'
import type { Db, Tx } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import { tooMany } from '../http/errors.ts'

const DAY_MS = 86_400_000
/** Deleting a project helps at once. */
const PROJECTS_RETRY_S = 60

type Context = Pick<Deps, 'config' | 'now'>

export async function checkWalletLimits(
  db: Db | Tx,
  deps: Context,
  wallet: string,
  isNewProject: boolean,
): Promise<void> {
  const { projectsMax } = deps.config
  if (isNewProject && (await countProjects(db, wallet)) >= projectsMax) {
    throw tooMany(`This wallet has ${projectsMax} projects, the most it may have`, PROJECTS_RETRY_S)
  }
  await checkDeploysPerDay(db, deps, wallet)
}

async function countProjects(db: Db | Tx, wallet: string): Promise<number> {
  const { count } = await db
    .selectFrom('gateway.projects')
    .select(sql<number>`count(*)::int`.as('count'))
    .where('wallet', '=', wallet)
    .where('deleted_at', 'is', null)
    .executeTakeFirstOrThrow()
  return count
}

/** Deployments of deleted projects count too. */
async function checkDeploysPerDay(db: Db | Tx, { config, now }: Context, wallet: string): Promise<void> {
  const { deploysPerDay } = config
  const nowMs = now().getTime()
  // The newest deployments, as many as are allowed: when all are younger than a day, the oldest decides when to retry.
  const newest = await db
    .selectFrom('gateway.deployments')
    .select('created_at')
    .where('wallet', '=', wallet)
    .where('created_at', '>', new Date(nowMs - DAY_MS))
    .orderBy('created_at', 'desc')
    .limit(deploysPerDay)
    .execute()
  if (newest.length < deploysPerDay) return
  const retryAfterS = Math.max(Math.ceil((newest.at(-1)!.created_at.getTime() + DAY_MS - nowMs) / 1000), 1)
  throw tooMany(`This wallet has started ${deploysPerDay} deployments in 24 hours, the most it may start`, retryAfterS)
}
