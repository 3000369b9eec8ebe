/**
 * Adds an entry to the ledger of a user. Credit is stored in millionths, and the balance of a user is the sum of the
 * entries: database triggers maintain it and refuse every other change (migration 0010).
 */
import { failure, notFound } from '@warren/kit/failure'
import type { CreditEntryKind } from '@warren/protocol'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { UserRow } from '../db/schema.ts'

export const MICRO_PER_CREDIT = 1_000_000

export type NewEntry = {
  /** Usage is charged by charge.ts only. */
  kind: Exclude<CreditEntryKind, 'usage'>
  reason: string
  sandboxId?: string
  /** A second entry with the same reference and amount changes nothing. */
  reference?: string
}

/** A negative amount removes credit. Returns the user after the change. */
export async function addCredit(tx: Tx, userId: string, credits: number, entry: NewEntry): Promise<UserRow> {
  const amount = Math.round(credits * MICRO_PER_CREDIT)
  // The lock orders the entries of one user, so that each has the balance after the one before it.
  const { rows } = await sql<{
    id: number
  }>`with locked as (select id, credit_micro from users where id = ${userId} for no key update)
    insert into credit_entries (user_id, kind, amount_micro, balance_micro, reason, sandbox_id, reference)
    select id, ${entry.kind}, ${amount}, credit_micro + ${amount}, ${entry.reason}, ${entry.sandboxId ?? null},
      ${entry.reference ?? null} from locked
    on conflict (user_id, reference) where reference is not null do nothing returning id`.execute(tx)
  const row = await tx.selectFrom('users').selectAll().where('id', '=', userId).executeTakeFirst()
  if (!row) throw notFound('user')
  if (rows.length === 0) await checkRepeated(tx, userId, amount, entry.reference)
  return row
}

/** A repeated request has the same amount. With another one, the reference was used for something else. */
async function checkRepeated(tx: Tx, userId: string, amount: number, reference: string | undefined): Promise<void> {
  const { amount_micro } = await tx
    .selectFrom('credit_entries')
    .select('amount_micro')
    .where('user_id', '=', userId)
    .where('reference', '=', reference ?? null)
    .executeTakeFirstOrThrow()
  if (amount_micro === amount) return
  const recorded = amount_micro / MICRO_PER_CREDIT
  throw failure('name_in_use', `reference ${reference} is already recorded with ${recorded} credits`)
}
