/**
 * Issues the access token of a sandbox. The sandbox row is locked meanwhile, so that a sandbox that is being destroyed
 * gets no token that outlives it.
 */
import { failure } from '@warren/kit/failure'
import type { AccessTokenSecretView } from '@warren/protocol'
import type { Tx } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import { checkTokenLifecycle, newAccessToken, viewSecret } from './token.ts'

export async function createAccessToken(deps: Deps, sandboxId: string): Promise<AccessTokenSecretView> {
  const { token, hash, hint } = newAccessToken()
  return deps.db.transaction().execute(async (tx) => {
    await lockForToken(tx, sandboxId)
    const row = await tx
      .insertInto('access_tokens')
      .values({ sandbox_id: sandboxId, hash, hint })
      .onConflict((conflict) => conflict.column('sandbox_id').doNothing())
      .returning(['created_at', 'rotated_at'])
      .executeTakeFirst()
    if (!row) throw failure('token_exists', 'access token already enabled')
    return viewSecret(token, row)
  })
}

export async function lockForToken(tx: Tx, sandboxId: string): Promise<void> {
  const { status } = await tx
    .selectFrom('sandboxes')
    .select('status')
    .where('id', '=', sandboxId)
    .forNoKeyUpdate()
    .executeTakeFirstOrThrow()
  checkTokenLifecycle(status)
}
