/**
 * The pool of credit of a wallet. Every change is an entry of the ledger; the database adds it to the balance in the same
 * statement (migrations/0001_gateway.sql). All decisions about a pool are made under the lock of its wallet's row.
 */
import { sql } from 'kysely'
import pg from 'pg'
import type { Db, Tx } from '../db/connect.ts'
import type { Deps } from '../deps.ts'

/** The balance, or undefined for a wallet that has never paid. */
export async function lockWallet(tx: Tx, wallet: string): Promise<bigint | undefined> {
  const row = await tx
    .selectFrom('gateway.wallets')
    .select('balance_micro')
    .where('address', '=', wallet)
    .forUpdate()
    .executeTakeFirst()
  return row?.balance_micro
}

/**
 * For a request that brings no payment. A balance that the database refuses to read counts as zero: the wallet is then asked to
 * pay, and nothing is granted on credit that may not exist. A lost connection is an error, because nothing else works either.
 */
export async function lockWalletOrCountZero(tx: Tx, { log }: Pick<Deps, 'log'>, wallet: string): Promise<bigint> {
  await sql`savepoint balance`.execute(tx)
  try {
    const balanceMicro = await lockWallet(tx, wallet)
    await sql`release savepoint balance`.execute(tx)
    return balanceMicro ?? 0n
  } catch (error) {
    if (!(error instanceof pg.DatabaseError)) throw error
    await sql`rollback to savepoint balance`.execute(tx)
    log.error({ err: error, wallet }, 'failed to read the credit of a wallet; it counts as zero')
    return 0n
  }
}

/** Without the lock, for a first look. */
export async function readBalance(db: Db, wallet: string): Promise<bigint> {
  const row = await db
    .selectFrom('gateway.wallets')
    .select('balance_micro')
    .where('address', '=', wallet)
    .executeTakeFirst()
  return row?.balance_micro ?? 0n
}

/** For a wallet that may be new. */
export async function createAndLockWallet(tx: Tx, wallet: string): Promise<bigint> {
  await tx
    .insertInto('gateway.wallets')
    .values({ address: wallet })
    .onConflict((conflict) => conflict.doNothing())
    .execute()
  return (await lockWallet(tx, wallet))!
}

export type LedgerEntry =
  | { kind: 'payment' | 'reversal'; wallet: string; amountMicro: bigint; hash: string }
  | { kind: 'usage'; wallet: string; amountMicro: bigint; projectId: string }

export async function addEntry(tx: Tx, entry: LedgerEntry): Promise<void> {
  await tx
    .insertInto('gateway.ledger')
    .values({
      wallet: entry.wallet,
      kind: entry.kind,
      amount_micro: entry.amountMicro,
      payment_hash: entry.kind === 'usage' ? null : entry.hash,
      project_id: entry.kind === 'usage' ? entry.projectId : null,
    })
    .execute()
  // Credit ends the time after which unpaid projects are deleted. Their apps are started again in the background.
  if (entry.kind === 'payment') {
    await sql`update gateway.wallets set unpaid_since = null
      where address = ${entry.wallet} and balance_micro > 0`.execute(tx)
  }
}
