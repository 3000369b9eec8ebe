/** The table of used transactions. Its key is the hash alone, over all chains and transports: one proof, one grant. */
import { sql } from 'kysely'
import type { Db, Tx } from '../db/connect.ts'
import { GatewayError } from '../http/errors.ts'
import type { QuoteKey } from './quotes.ts'
import type { VerifiedPayment } from './verify.ts'

export async function refuseUsedHash(db: Db | Tx, hash: string, wallet: string): Promise<void> {
  const used = await db
    .selectFrom('gateway.payments')
    .select(['wallet', 'project_id', 'deployment_id'])
    .where('hash', '=', hash)
    .where('status', '!=', 'orphaned')
    .executeTakeFirst()
  if (used) throw alreadyProcessed(used.wallet === wallet ? used : undefined)
}

/** The wallet that used it learns what it bought, which recovers an answer that was lost. Others learn nothing. */
export function alreadyProcessed(own?: { project_id: string | null; deployment_id: string | null }): GatewayError {
  const extra = own?.deployment_id ? { projectId: own.project_id, deploymentId: own.deployment_id } : {}
  return new GatewayError(409, 'Payment already processed', { extra })
}

/** Throws 409 when the hash was used, also by a request that runs at the same time: it waits for that one to commit. */
export async function recordPayment(tx: Tx, payment: VerifiedPayment, key: QuoteKey, now: Date): Promise<void> {
  const values = {
    wallet: key.wallet,
    chain: payment.chain.name,
    token: payment.token.name,
    amount_micro: payment.amountMicro,
    block_number: payment.blockNumber,
    block_hash: payment.blockHash,
    status: 'accepted' as const,
    unique_name: key.uniqueName.toLowerCase(),
    months: key.months,
    project_id: null,
    deployment_id: null,
    balance_checked: false,
    created_at: now,
    checked_at: now,
  }
  const { numInsertedOrUpdatedRows } = await tx
    .insertInto('gateway.payments')
    .values({ hash: payment.hash, ...values })
    // A transaction that its chain dropped may come back in another block, and is then a payment again.
    .onConflict((conflict) =>
      conflict.column('hash').doUpdateSet(values).where('gateway.payments.status', '=', 'orphaned'),
    )
    .executeTakeFirstOrThrow()
  if (numInsertedOrUpdatedRows === 1n) return
  await refuseUsedHash(tx, payment.hash, key.wallet)
  throw alreadyProcessed()
}

/** What was paid for this name and time and has not led to a deployment. */
export async function sumPartialPayments(db: Db | Tx, { wallet, uniqueName, months }: QuoteKey): Promise<bigint> {
  const { rows } = await sql<{ sum: bigint }>`select coalesce(sum(amount_micro), 0) as sum from gateway.payments
    where wallet = ${wallet} and unique_name = ${uniqueName.toLowerCase()} and months = ${months}
      and deployment_id is null and status <> 'orphaned'`.execute(db)
  return rows[0]!.sum
}

/** Names what the payments of this name and time have bought, in part or whole. */
export async function assignPayments(
  tx: Tx,
  { wallet, uniqueName, months }: QuoteKey,
  bought: { projectId: string; deploymentId: string },
): Promise<void> {
  await tx
    .updateTable('gateway.payments')
    .set({ project_id: bought.projectId, deployment_id: bought.deploymentId })
    .where('wallet', '=', wallet)
    .where('unique_name', '=', uniqueName.toLowerCase())
    .where('months', '=', months)
    .where('deployment_id', 'is', null)
    .where('status', '!=', 'orphaned')
    .execute()
}
