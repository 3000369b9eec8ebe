/**
 * Checks the caps of a user's plan: how many of a resource may exist at once, and how many may be created in 24 hours.
 *
 * Every create of a capped resource follows these steps in one transaction:
 *
 *   withLockedUser(deps.db, userId, async (tx, user) => {
 *     await checkCaps(tx, user, NETWORK_CAPS)    429
 *     checkCredit(user, 'create', 'networks')    402
 *     insert the row
 *   })
 *
 * The lock on the user's row makes concurrent creates wait for each other, so each one counts the rows of those before
 * it, and a create that failed has left no row to count.
 */
import { failure } from '@warren/kit/failure'
import type { FailureCode } from '@warren/protocol'
import { sql } from 'kysely'
import type { Db, Tx } from '../db/connect.ts'
import type { Tables, UserRow } from '../db/schema.ts'
import { isCharged, type Limits, limitsOf } from './plans.ts'

export type LockedUser = Pick<UserRow, 'id' | 'plan' | 'credit_micro' | 'limit_overrides'>

/** The names of the resource's limits are its kind and `<kind>_per_day`. */
export type CappedKind = 'sandboxes' | 'networks' | 'disks' | 'templates' | 'template_builds' | 'webhook_endpoints'

export type CappedResource = {
  kind: CappedKind
  /** One of them, for messages. */
  noun: string
  /** Of a create that exceeds the concurrent cap; `cap_reached` unless the API has a separate code. */
  code?: FailureCode
  countLive(db: Db | Tx, userId: string): Promise<number>
  /** Creations in the last 24 hours; it may stop counting at `max`. Absent for resources without a daily cap. */
  countDay?(db: Db | Tx, userId: string, max: number): Promise<number>
}

/**
 * Serialises the creates of one user until the transaction ends. The lock does not block inserts that reference the
 * user, such as API keys.
 */
export function lockUser(tx: Tx, userId: string): Promise<LockedUser> {
  return tx
    .selectFrom('users')
    .select(['id', 'plan', 'credit_micro', 'limit_overrides'])
    .where('id', '=', userId)
    .forNoKeyUpdate()
    .executeTakeFirstOrThrow()
}

/** Throws 429 when `more` further resources would exceed a cap. */
export async function checkCaps(tx: Tx, user: LockedUser, resource: CappedResource, more = 1): Promise<void> {
  const limits = limitsOf(user)
  const live = await resource.countLive(tx, user.id)
  if (live + more > limits[resource.kind]) throw capReached(resource, limits, user)
  const perDay = dailyLimit(limits, resource.kind)
  if (!resource.countDay || perDay === Number.POSITIVE_INFINITY) return
  if ((await resource.countDay(tx, user.id, perDay)) + more > perDay) {
    throw failure(
      'daily_cap_reached',
      `daily ${resource.noun} cap reached: ${ownerOfLimit(user, `${resource.kind}_per_day`)} allows ${perDay} in 24 hours`,
    )
  }
}

/** For resources that are counted already, as at a resume: the total must not exceed the cap. */
export async function checkConcurrentCap(tx: Tx, user: LockedUser, resource: CappedResource): Promise<void> {
  const limits = limitsOf(user)
  if ((await resource.countLive(tx, user.id)) > limits[resource.kind]) throw capReached(resource, limits, user)
}

type ChargedOperation = 'create' | 'resume' | 'fork'

/** Throws 402 when the user has no credit left. The plans `local` and `internal` are never charged. */
export function checkCredit(user: LockedUser, operation: ChargedOperation, kind = 'sandboxes'): void {
  if (!isCharged(user.plan) || user.credit_micro > 0) return
  throw failure('insufficient_credit', `insufficient credit, add credit to ${operation} ${kind}`)
}

export const dailyLimit = (limits: Limits, kind: CappedKind): number =>
  (limits as Record<string, number>)[`${kind}_per_day`] ?? Number.POSITIVE_INFINITY

/** For a table with the columns `user_id` and `created_at` in which deleted rows stay and have `deleted_at`. */
export const countTable = (table: keyof Tables): Required<Pick<CappedResource, 'countLive' | 'countDay'>> => ({
  countLive: async (db, userId) =>
    takeCount(
      await sql<{ n: number }>`select count(*) as n from ${sql.table(table)}
        where user_id = ${userId} and deleted_at is null`.execute(db),
    ),
  countDay: async (db, userId) =>
    takeCount(
      await sql<{ n: number }>`select count(*) as n from ${sql.table(table)}
        where user_id = ${userId} and created_at > now() - interval '24 hours'`.execute(db),
    ),
})

export const takeCount = ({ rows }: { rows: { n: number }[] }): number => rows[0]?.n ?? 0

function capReached({ kind, noun, code = 'cap_reached' }: CappedResource, limits: Limits, user: LockedUser) {
  return failure(code, `${noun} cap reached: ${ownerOfLimit(user, kind)} allows ${limits[kind]} at once`)
}

const ownerOfLimit = (user: LockedUser, limit: string): string =>
  limit in user.limit_overrides ? 'your account' : user.plan
