/** Credit is stored in millionths, so that prices per second add up exactly. Every change is recorded as an entry. */
import { notFound } from '@warren/kit/failure'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { UserRow } from '../db/schema.ts'

export const MICRO_PER_CREDIT = 1_000_000

export async function addCredit(tx: Tx, userId: string, credits: number, reason: string): Promise<UserRow> {
  const amount = Math.round(credits * MICRO_PER_CREDIT)
  const row = await tx
    .updateTable('users')
    .set({ credit_micro: sql<number>`credit_micro + ${amount}` })
    .where('id', '=', userId)
    .returningAll()
    .executeTakeFirst()
  if (!row) throw notFound('user')
  await tx.insertInto('credit_entries').values({ user_id: userId, amount_micro: amount, reason }).execute()
  return row
}
