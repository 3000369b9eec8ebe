/**
 * Notices that the credit of a user has fallen below `lowCredits`. The owner is notified once, and again only after the
 * credit was above that value in between.
 */
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import type { LockedUser } from '../users/caps.ts'
import { emitEvent } from '../webhooks/emit.ts'
import { MICRO_PER_CREDIT } from './add.ts'

/**
 * Call this in the transaction that has reduced the balance, with the user as it was before: a top-up may have raised it
 * since the last notification.
 */
export async function noteLowCredit(
  deps: Pick<Deps, 'config' | 'log'>,
  tx: Tx,
  { id: userId, credit_micro: beforeMicro }: Pick<LockedUser, 'id' | 'credit_micro'>,
): Promise<void> {
  const lowMicro = deps.config.lowCredits * MICRO_PER_CREDIT
  const wasEnough = beforeMicro >= lowMicro
  const { rows } = await sql<LowCredit & { is_low: boolean }>`
    update users set credit_low_at = case when credit_micro < ${lowMicro} then now() end
    where id = ${userId} and is_charged(plan)
      and case when credit_micro < ${lowMicro} then credit_low_at is null or ${wasEnough}::boolean
        else credit_low_at is not null end
    returning id, name, credit_micro as balance_micro, credit_low_at is not null as is_low`.execute(tx)
  const [row] = rows
  if (row?.is_low) await emitLowCredit(deps, tx, row)
}

type LowCredit = { id: string; name: string; balance_micro: number }

/** The only place that announces low credit. */
async function emitLowCredit(
  { log }: Pick<Deps, 'log'>,
  tx: Tx,
  { id, name, balance_micro }: LowCredit,
): Promise<void> {
  log.warn({ user: id, balance_micro }, 'credit of user is low')
  await emitEvent(tx, {
    userId: id,
    action: 'account.credit.low',
    subject: id,
    data: { id, name, balance_micro },
  })
}
