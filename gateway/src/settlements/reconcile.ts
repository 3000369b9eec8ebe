/**
 * Brings settlements to their end that no request waits for any more:
 *
 *   the token accepted the authorization   the payment becomes credit of the wallet
 *   its time is over and it was not used   it has failed; it can never be on the chain
 *   otherwise                              it is sent again, with higher fees when it waits for long
 *
 * The number of a transaction of the settler must be used even if its authorization is worthless by now, because it stops all
 * that follow. So a settlement ends only when the chain has used its number.
 */
import { sql } from 'kysely'
import type { PublicClient } from 'viem'
import { CHAIN_NAMES, CHAINS, type ChainName } from '../chains/table.ts'
import type { Tx } from '../db/connect.ts'
import type { SettlementRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { GatewayError } from '../http/errors.ts'
import { addEntry, createAndLockWallet } from '../payments/pool.ts'
import { recordPayment } from '../payments/record.ts'
import { type VerifiedPayment, verifyPayment } from '../payments/verify.ts'
import type { Sweep } from '../sweep.ts'
import { findUse } from './find-use.ts'
import { readFees, type Settler, send } from './settler.ts'

const BATCH = 100
/** After a block that is this much later than the end of its time, no block can contain it. */
const EXPIRED_MARGIN_S = 120n
const RESIGN_AFTER_MS = 60_000
/** A rejected replacement must pay at least a tenth more. */
const RAISE_PERCENT = 125n

export const reconcileSettlements: Sweep = {
  name: 'reconcile-settlements',
  everyMs: 3_000,
  atStart: true,
  async run(deps) {
    await Promise.all(CHAIN_NAMES.map((chain) => reconcileChain(deps, chain)))
  },
}

type PendingRow = SettlementRow & { is_leased: boolean }

async function reconcileChain(deps: Deps, chain: ChainName): Promise<void> {
  const { rows } = await sql<PendingRow>`select *, leased_until > now() as is_leased from gateway.settlements
    where chain = ${chain} and status = 'pending' and created_at < now() - interval '5 seconds'
    order by account_nonce nulls first limit ${BATCH}`.execute(deps.db)
  for (const row of rows) {
    await reconcile(deps, row).catch((error) =>
      deps.log.warn({ err: error, settlement: row.id }, 'failed to reconcile a settlement, it will be tried again'),
    )
  }
}

async function reconcile(deps: Deps, row: PendingRow): Promise<void> {
  const reader = deps.chains[row.chain]
  const [use, safeTime, used] = await reader.read((client) =>
    Promise.all([findUse(client, row), readSafeTime(client), countUsed(client, row)]),
  )
  const isNumberUsed = row.account_nonce === null || used > row.account_nonce
  if (!isNumberUsed) await sendAgain(deps, row)
  if (row.is_leased) return
  if (use) return credit(deps, row, use.hash)
  if (isNumberUsed && safeTime > row.valid_before + EXPIRED_MARGIN_S) {
    await deps.db
      .updateTable('gateway.settlements')
      .set({ status: 'failed' })
      .where('id', '=', row.id)
      .where('status', '=', 'pending')
      .execute()
  }
}

/** Of a block that every node behind an endpoint has: one that is late must not make a payment look absent. */
async function readSafeTime(client: PublicClient): Promise<bigint> {
  const block = await client.getBlock({ blockTag: 'safe' }).catch((error: Error) => {
    if (error.name === 'BlockNotFoundError') return undefined // The chain has none yet.
    throw error
  })
  return block?.timestamp ?? 0n
}

const countUsed = async (client: PublicClient, { settler }: SettlementRow): Promise<bigint> =>
  settler === null ? 0n : BigInt(await client.getTransactionCount({ address: settler as `0x${string}` }))

/** The same transaction, or one with the same number and higher fees. Either of them uses the number, and only one can. */
async function sendAgain(deps: Deps, row: SettlementRow): Promise<void> {
  const isOld = row.sent_at !== null && Date.now() - row.sent_at.getTime() > RESIGN_AFTER_MS
  const raw = isOld && deps.settler?.address === row.settler ? await signAgain(deps, deps.settler, row) : undefined
  await deps.chains[row.chain].read((client) => send(client, raw ?? (row.raw_transaction as `0x${string}`)))
}

async function signAgain(deps: Deps, settler: Settler, row: SettlementRow): Promise<`0x${string}`> {
  const chain = CHAINS[row.chain]
  const to = chain.tokens[row.token].address
  const data = row.calldata as `0x${string}`
  const { fees, gas } = await deps.chains[row.chain].read(async (client) => ({
    fees: await readFees(client),
    // It may be reverted by now, and then cannot be estimated.
    gas: await client.estimateGas({ account: settler.address, to, data }).catch(() => 200_000n),
  }))
  const raised = {
    maxFeePerGas: (fees.maxFeePerGas * RAISE_PERCENT) / 100n,
    maxPriorityFeePerGas: (fees.maxPriorityFeePerGas * RAISE_PERCENT) / 100n + 1n,
  }
  const { raw } = await settler.sign(chain, { to, data, nonce: Number(row.account_nonce), gas: gas * 2n, ...raised })
  await deps.db
    .updateTable('gateway.settlements')
    .set({ raw_transaction: raw, sent_at: sql<Date>`now()` })
    .where('id', '=', row.id)
    .execute()
  return raw
}

async function credit(deps: Deps, row: SettlementRow, hash: `0x${string}`): Promise<void> {
  const chain = CHAINS[row.chain]
  const verification = await verifyPayment(deps, { hash, chain, token: chain.tokens[row.token], wallet: row.payer })
  if (!('payment' in verification)) return // Not final yet, or dropped again.
  await creditSettlement(deps, row, verification.payment)
  deps.log.info({ settlement: row.id, wallet: row.payer, hash }, 'a payment whose request ended early is credit now')
}

/** Exported for tests of the money. */
export async function creditSettlement(deps: Deps, row: SettlementRow, payment: VerifiedPayment): Promise<void> {
  await deps.db.transaction().execute(async (tx) => {
    await createAndLockWallet(tx, row.payer)
    if (!(await markSettled(tx, row.id))) return // Another process was faster.
    await creditOnce(tx, deps, row, payment)
  })
}

/** Its transaction may have been presented as X-Payment-Tx meanwhile. */
async function creditOnce(tx: Tx, deps: Deps, row: SettlementRow, payment: VerifiedPayment): Promise<void> {
  const key = { wallet: row.payer, uniqueName: row.unique_name, months: row.months }
  try {
    await recordPayment(tx, payment, key, deps.now())
  } catch (error) {
    if (error instanceof GatewayError && error.status === 409) return
    throw error
  }
  await addEntry(tx, { kind: 'payment', wallet: row.payer, amountMicro: payment.amountMicro, hash: payment.hash })
}

/** Returns false if it was not pending. */
export async function markSettled(tx: Tx, id: string): Promise<boolean> {
  const { numUpdatedRows } = await tx
    .updateTable('gateway.settlements')
    .set({ status: 'settled' })
    .where('id', '=', id)
    .where('status', '=', 'pending')
    .executeTakeFirstOrThrow()
  return numUpdatedRows === 1n
}

const LOW_TRANSFERS = 100n
const TRANSFER_GAS = 120_000n

/** An empty settler stops all payments by x402 and MPP. */
export const checkSettlerFunds: Sweep = {
  name: 'check-settler-funds',
  everyMs: 600_000,
  atStart: true,
  async run(deps) {
    const { settler } = deps
    if (!settler) return
    for (const name of CHAIN_NAMES) {
      const { balance, price } = await deps.chains[name].read(async (client) => ({
        balance: await client.getBalance({ address: settler.address }),
        price: await client.getGasPrice(),
      }))
      if (balance >= price * TRANSFER_GAS * LOW_TRANSFERS) continue
      deps.log.error(
        { chain: name, settler: settler.address, balance: String(balance) },
        `ALERT: the settler has gas for fewer than ${LOW_TRANSFERS} payments; send it some of the native coin`,
      )
    }
  },
}
