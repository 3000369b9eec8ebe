/**
 * How many sandboxes a user may have (spec 8): at once, and made in the last 24 hours. And whether they can pay.
 *
 * Counted while the row of the user is locked, so of creates that race each sees those before it. A create under way
 * counts in both; one that fails counts in neither.
 */
import { failure } from '@warren/kit/failure'
import { isTerminal, SANDBOX_STATUSES } from '@warren/protocol'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { UserRow } from '../db/schema.ts'
import { PLANS, type PlanName } from '../users/plans.ts'

const LIVE = SANDBOX_STATUSES.filter((status) => !isTerminal(status))

/** Creates of one user go one after the other from here to the commit; a key or a credit entry may still be added. */
export function lockUser(tx: Tx, userId: string): Promise<Pick<UserRow, 'plan' | 'credit_micro'>> {
  return tx
    .selectFrom('users')
    .select(['plan', 'credit_micro'])
    .where('id', '=', userId)
    .forNoKeyUpdate()
    .executeTakeFirstOrThrow()
}

/** For `more` new ones. */
export async function checkCaps(tx: Tx, userId: string, plan: PlanName, more = 1): Promise<void> {
  const { concurrent, per_day } = PLANS[plan].sandboxes
  // Read in any case: the lock keeps the order of locks (placement.ts) for plans without a cap as well.
  const live = await countLive(tx, userId)
  if (live + more > concurrent) throw capReached(plan, concurrent)
  if (per_day === Number.POSITIVE_INFINITY) return
  if ((await countDay(tx, userId, per_day)) + more > per_day) {
    throw failure('daily_cap_reached', `daily sandbox cap reached: ${plan} allows ${per_day} in 24 hours`)
  }
}

/** For one that is counted already: all others, paused ones included, must leave room for it (spec 4.2). */
export async function checkResumeCap(tx: Tx, userId: string, plan: PlanName): Promise<void> {
  const { concurrent } = PLANS[plan].sandboxes
  if ((await countLive(tx, userId)) > concurrent) throw capReached(plan, concurrent)
}

type Gate = 'create' | 'resume' | 'fork'

export function checkCredit(user: Pick<UserRow, 'plan' | 'credit_micro'>, what: Gate, kind = 'sandboxes'): void {
  if (user.plan === 'local' || user.credit_micro > 0) return
  throw failure('insufficient_credit', `insufficient credit, add credit to ${what} ${kind}`)
}

const capReached = (plan: PlanName, concurrent: number) =>
  failure('cap_reached', `sandbox cap reached: ${plan} allows ${concurrent} at once`)

async function countLive(tx: Tx, userId: string): Promise<number> {
  const counts = await tx
    .selectFrom('sandbox_counts')
    .select(LIVE)
    .where('user_id', '=', userId)
    .forUpdate()
    .executeTakeFirst()
  return LIVE.reduce((sum, status) => sum + (counts?.[status] ?? 0), 0)
}

/** No further than the cap: more does not matter. */
async function countDay(tx: Tx, userId: string, cap: number): Promise<number> {
  const { rows } = await sql<{ n: number }>`select count(*) as n from (
    select from sandboxes where user_id = ${userId} and created_at > now() - interval '24 hours'
      and (running_at is not null or status in ('creating', 'forking')
        or (forked_from is not null and status <> 'failed'))
    limit ${cap}) counted`.execute(tx)
  return rows[0]?.n ?? 0
}
