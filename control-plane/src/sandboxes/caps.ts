/**
 * Checks the caps of a user's plan (how many sandboxes may exist at once, and how many may be created in 24 hours) and
 * whether the user has credit.
 *
 * Sandboxes are counted while the user's row is locked, so concurrent creates see each other. A create in progress
 * counts towards both caps; one that failed counts towards neither.
 */
import { failure } from '@warren/kit/failure'
import { isTerminal, SANDBOX_STATUSES } from '@warren/protocol'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { UserRow } from '../db/schema.ts'
import { PLANS, type PlanName } from '../users/plans.ts'

const LIVE = SANDBOX_STATUSES.filter((status) => !isTerminal(status))

/**
 * Serialises the creates of one user until the transaction ends. The lock does not block inserts that reference the
 * user, such as API keys and credit entries.
 */
export function lockUser(tx: Tx, userId: string): Promise<Pick<UserRow, 'plan' | 'credit_micro'>> {
  return tx
    .selectFrom('users')
    .select(['plan', 'credit_micro'])
    .where('id', '=', userId)
    .forNoKeyUpdate()
    .executeTakeFirstOrThrow()
}

/** Throws 429 when `more` further sandboxes would exceed a cap. */
export async function checkCaps(tx: Tx, userId: string, plan: PlanName, more = 1): Promise<void> {
  const { concurrent, per_day } = PLANS[plan].sandboxes
  // Plans without a cap are counted as well, because this takes a lock that must come before the host's
  // (reservations.ts).
  const live = await countLive(tx, userId)
  if (live + more > concurrent) throw capReached(plan, concurrent)
  if (per_day === Number.POSITIVE_INFINITY) return
  if ((await countDay(tx, userId, per_day)) + more > per_day) {
    throw failure('daily_cap_reached', `daily sandbox cap reached: ${plan} allows ${per_day} in 24 hours`)
  }
}

/** A resume is already counted, as are paused sandboxes, so the total must not exceed the cap. */
export async function checkResumeCap(tx: Tx, userId: string, plan: PlanName): Promise<void> {
  const { concurrent } = PLANS[plan].sandboxes
  if ((await countLive(tx, userId)) > concurrent) throw capReached(plan, concurrent)
}

type ChargedOperation = 'create' | 'resume' | 'fork'

export function checkCredit(
  user: Pick<UserRow, 'plan' | 'credit_micro'>,
  operation: ChargedOperation,
  kind = 'sandboxes',
): void {
  if (user.plan === 'local' || user.credit_micro > 0) return
  throw failure('insufficient_credit', `insufficient credit, add credit to ${operation} ${kind}`)
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

/** Stops counting at the cap. */
async function countDay(tx: Tx, userId: string, cap: number): Promise<number> {
  const { rows } = await sql<{ n: number }>`select count(*) as n from (
    select from sandboxes where user_id = ${userId} and created_at > now() - interval '24 hours'
      and (running_at is not null or status in ('creating', 'forking')
        or (forked_from is not null and status <> 'failed'))
    limit ${cap}) counted`.execute(tx)
  return rows[0]?.n ?? 0
}
