import type { AccessTokenView } from '@warren/protocol'
import type { Deps } from '../deps.ts'

export async function getAccessToken(deps: Deps, sandboxId: string): Promise<AccessTokenView> {
  const row = await deps.db
    .selectFrom('access_tokens')
    .selectAll()
    .where('sandbox_id', '=', sandboxId)
    .executeTakeFirst()
  if (!row) return { enabled: false }
  return {
    enabled: true,
    token_hint: row.hint,
    created_at: row.created_at.toISOString(),
    ...(row.rotated_at ? { rotated_at: row.rotated_at.toISOString() } : {}),
  }
}
