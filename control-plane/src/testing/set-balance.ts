/** Gives a user this balance, with an entry in the ledger as for every change of credit. */
import { addCredit, MICRO_PER_CREDIT } from '../credit/add.ts'
import type { Db } from '../db/connect.ts'

export async function setBalance(db: Db, userId: string, micro: number): Promise<void> {
  await db.transaction().execute(async (tx) => {
    const user = await tx.selectFrom('users').selectAll().where('id', '=', userId).executeTakeFirstOrThrow()
    const credits = (micro - user.credit_micro) / MICRO_PER_CREDIT
    await addCredit(tx, userId, credits, { kind: 'adjustment', reason: 'balance of a test' })
  })
}
