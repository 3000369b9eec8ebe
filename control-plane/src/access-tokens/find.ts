/**
 * Finds the caller of a `skp_sb_` token. Unlike API keys, tokens are never cached: a token must be invalid as soon as
 * the request that disabled or rotated it has returned, and other processes learn of that a moment later. Look-ups are
 * batched instead, so each result was read after its request arrived.
 */
import type { Database } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import type { Caller } from '../http/caller.ts'
import { type CallerRow, toCallerUser } from '../users/find-by-key.ts'

const FIND = `select encode(t.hash, 'hex') as hash, u.id, u.name, u.external_id, u.plan, u.operator,
    u.limit_overrides, s.id as sandbox_id, t.hint
  from access_tokens t join sandboxes s on s.id = t.sandbox_id join users u on u.id = s.user_id
  where t.hash = any($1) and s.status not in ('destroyed', 'failed')`

export type TokenRow = CallerRow & { hash: string; sandbox_id: string; hint: string }

/** Keyed by hash, in hex. */
export async function findTokens(database: Database, hashes: string[]): Promise<Map<string, TokenRow>> {
  const bytes = hashes.map((hash) => Buffer.from(hash, 'hex'))
  const rows = await database.named<TokenRow>('find-access-tokens', FIND, [bytes])
  return new Map(rows.map((row) => [row.hash, row]))
}

export async function findTokenCaller(deps: Deps, hash: string): Promise<Caller | undefined> {
  const row = await deps.loaders.accessToken(hash)
  if (!row) return undefined
  const { hint: credential, sandbox_id: sandboxId } = row
  return { kind: 'token', user: toCallerUser(deps, row), credential, sandboxId, tokenHash: hash }
}
