/**
 * Sets a limit of one user, instead of that of the plan. Running processes apply it with the next request: a database
 * trigger clears their cached credentials.
 */
import { sql } from 'kysely'
import type { Db } from '../db/connect.ts'
import type { UserRow } from '../db/schema.ts'
import type { LimitName } from './plans.ts'

/** `plan` removes the override. Infinity means no limit. */
export function setLimit(db: Db, userId: string, limit: LimitName, value: number | 'plan'): Promise<UserRow> {
  const stored = value === Number.POSITIVE_INFINITY ? null : value
  const overrides =
    value === 'plan'
      ? sql<string>`limit_overrides - ${limit}::text`
      : sql<string>`limit_overrides || ${JSON.stringify({ [limit]: stored })}::jsonb`
  return db
    .updateTable('users')
    .set({ limit_overrides: overrides })
    .where('id', '=', userId)
    .returningAll()
    .executeTakeFirstOrThrow()
}
