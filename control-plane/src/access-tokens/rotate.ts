/** Replaces the access token. The old one is invalid from the commit on, and its open requests end (end-revoked.ts). */
import { notFound } from '@warren/kit/failure'
import type { AccessTokenSecretView } from '@warren/protocol'
import { sql } from 'kysely'
import type { Deps } from '../deps.ts'
import { lockForToken } from './create.ts'
import { newAccessToken, viewSecret } from './token.ts'

export async function rotateAccessToken(deps: Deps, sandboxId: string): Promise<AccessTokenSecretView> {
  const { token, hash, hint } = newAccessToken()
  return deps.db.transaction().execute(async (tx) => {
    await lockForToken(tx, sandboxId)
    const row = await tx
      .updateTable('access_tokens')
      .set({ hash, hint, rotated_at: sql<Date>`now()` })
      .where('sandbox_id', '=', sandboxId)
      .returning(['created_at', 'rotated_at'])
      .executeTakeFirst()
    if (!row) throw notFound('access token')
    return viewSecret(token, row)
  })
}
