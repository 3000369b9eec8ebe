/**
 * The address that receives payments, and since when. The first start with an address records the time, so that older
 * transfers to it, of another business of its owner for example, cannot be presented as payments.
 */
import type { Deps } from '../deps.ts'
import { CHAIN_NAMES } from './table.ts'

export async function ensureRecipient(deps: Pick<Deps, 'db' | 'config' | 'now'>): Promise<void> {
  const { payTo, payToSince } = deps.config
  const row = { address: payTo.toLowerCase(), since: payToSince === '' ? deps.now() : new Date(payToSince) }
  await deps.db
    .insertInto('gateway.recipients')
    .values(row)
    .onConflict((conflict) =>
      payToSince === '' ? conflict.doNothing() : conflict.column('address').doUpdateSet({ since: row.since }),
    )
    .execute()
}

export async function getRecipientSince(deps: Pick<Deps, 'db' | 'config'>): Promise<Date> {
  const { since } = await deps.db
    .selectFrom('gateway.recipients')
    .select('since')
    .where('address', '=', deps.config.payTo.toLowerCase())
    .executeTakeFirstOrThrow()
  return since
}

export async function listRecipients(deps: Pick<Deps, 'db' | 'config'>) {
  const since = await getRecipientSince(deps)
  return {
    updated_at: since.toISOString(),
    recipients: CHAIN_NAMES.map((chain) => ({ chain: chain as string, address: deps.config.payTo })),
  }
}
