/** Disables the access token. Allowed in every state, and idempotent. */
import type { AccessTokenView } from '@warren/protocol'
import type { Deps } from '../deps.ts'

export async function deleteAccessToken(deps: Deps, sandboxId: string): Promise<AccessTokenView> {
  await deps.db.deleteFrom('access_tokens').where('sandbox_id', '=', sandboxId).execute()
  return { enabled: false }
}
