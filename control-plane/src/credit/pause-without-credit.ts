/** Pauses the running sandboxes of a user who has no credit left, unless the operator has turned that off. */
import type { Deps } from '../deps.ts'
import { beginPause } from '../sandboxes/pause.ts'
import { lockUser } from '../users/caps.ts'
import { isCharged } from '../users/plans.ts'

export const CREDIT_PAUSE_REASON = 'credit: the account has no credit left'

/** The user's row is locked first, so that a top-up is either seen here or follows the pause. */
export async function pauseWithoutCredit(deps: Deps, userId: string): Promise<void> {
  if (!deps.config.creditPause) return
  const ids = await deps.db.transaction().execute(async (tx) => {
    const user = await lockUser(tx, userId)
    if (!isCharged(user.plan) || user.credit_micro > 0) return []
    const running = await tx
      .selectFrom('sandboxes')
      .select('id')
      .where('user_id', '=', userId)
      .where('status', '=', 'running')
      .orderBy('id')
      .forNoKeyUpdate()
      .execute()
    for (const { id } of running) await beginPause(tx, id, 'system', CREDIT_PAUSE_REASON)
    return running.map(({ id }) => id)
  })
  for (const id of ids) deps.log.info({ sandbox: id, user: userId }, 'pausing a sandbox without credit')
}
