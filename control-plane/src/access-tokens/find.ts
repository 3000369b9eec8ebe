/** Whose sandbox a `skp_sb_` token opens. */
import type { Deps } from '../deps.ts'
import type { Caller } from '../http/callers.ts'
import { type CallerRow, toCallerUser } from '../users/find-by-key.ts'

const FIND = `select u.id, u.name, u.external_id, u.plan, u.operator, s.id as sandbox_id
  from access_tokens t join sandboxes s on s.id = t.sandbox_id join users u on u.id = s.user_id
  where t.hash = $1 and s.status not in ('destroyed', 'failed')`

export async function findTokenCaller(deps: Deps, hash: Buffer): Promise<Caller | undefined> {
  const [row] = await deps.database.named<CallerRow & { sandbox_id: string }>('find-access-token', FIND, [hash])
  if (!row) return undefined
  return { kind: 'token', user: toCallerUser(deps, row), sandboxId: row.sandbox_id, tokenHash: hash.toString('hex') }
}
