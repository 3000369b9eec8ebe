/** Finds the user of an API key by the hash of the key. The key itself is not stored. */
import type { UserRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import type { Caller, CallerUser } from '../http/caller.ts'
import { limitsOf } from './plans.ts'

export type CallerRow = Pick<UserRow, 'id' | 'name' | 'external_id' | 'plan' | 'operator' | 'limit_overrides'>

const FIND = `select u.id, u.name, u.external_id, u.plan, u.operator, u.limit_overrides, k.hint
  from api_keys k join users u on u.id = k.user_id where k.hash = $1 and k.revoked_at is null`

export async function findKeyCaller(deps: Deps, hash: Buffer): Promise<Caller | undefined> {
  const [row] = await deps.database.named<CallerRow & { hint: string }>('find-api-key', FIND, [hash])
  return row && { kind: 'user', user: toCallerUser(deps, row), credential: row.hint }
}

export function toCallerUser(deps: Deps, row: CallerRow): CallerUser {
  const names = [row.id, row.name, row.external_id]
  const configured = deps.config.operators.some((operator) => names.includes(operator))
  return { id: row.id, plan: row.plan, limits: limitsOf(row), operator: row.operator || configured }
}
