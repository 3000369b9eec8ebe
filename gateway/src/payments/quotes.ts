/**
 * Prices that were asked. A payment is measured against the lowest one that has not expired, so that a price change never
 * strands a payment that is on its way. Asking again extends a quote only at the price that applies at that time.
 */
import type { Db, Tx } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import type { Sweep } from '../sweep.ts'

export type QuoteKey = { wallet: string; uniqueName: string; months: number }
export type Quote = { priceMicro: bigint; countsPool: boolean }

export async function listQuotes(db: Db | Tx, { wallet, uniqueName, months }: QuoteKey, now: Date): Promise<Quote[]> {
  const rows = await db
    .selectFrom('gateway.quotes')
    .select(['price_micro', 'counts_pool'])
    .where('wallet', '=', wallet)
    .where('unique_name', '=', uniqueName.toLowerCase())
    .where('months', '=', months)
    .where('expires_at', '>', now)
    .execute()
  return rows.map((row) => ({ priceMicro: row.price_micro, countsPool: row.counts_pool }))
}

export async function saveQuote(
  tx: Tx,
  deps: Pick<Deps, 'config' | 'now'>,
  key: QuoteKey,
  quote: Quote,
): Promise<void> {
  const expires_at = new Date(deps.now().getTime() + deps.config.quoteMinutes * 60_000)
  await tx
    .insertInto('gateway.quotes')
    .values({
      wallet: key.wallet,
      unique_name: key.uniqueName.toLowerCase(),
      months: key.months,
      price_micro: quote.priceMicro,
      counts_pool: quote.countsPool,
      expires_at,
    })
    .onConflict((conflict) =>
      conflict.columns(['wallet', 'unique_name', 'months', 'price_micro', 'counts_pool']).doUpdateSet({ expires_at }),
    )
    .execute()
}

/** What was asked has been paid. */
export async function deleteQuotes(tx: Tx, { wallet, uniqueName, months }: QuoteKey): Promise<void> {
  await tx
    .deleteFrom('gateway.quotes')
    .where('wallet', '=', wallet)
    .where('unique_name', '=', uniqueName.toLowerCase())
    .where('months', '=', months)
    .execute()
}

export const deleteExpiredQuotes: Sweep = {
  name: 'delete-expired-quotes',
  everyMs: 60_000,
  async run(deps) {
    await deps.db.deleteFrom('gateway.quotes').where('expires_at', '<', deps.now()).execute()
  },
}
