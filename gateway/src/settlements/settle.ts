/**
 * Brings a signed authorization to its chain, and waits until the payment can be verified like any other:
 *
 *   1. simulate it: an authorization that the token refuses costs no gas
 *   2. insert the row. Its key, payer and nonce, admits one of several requests with the same authorization
 *   3. sign a transaction and store it, under the lock that numbers the settler's transactions
 *   4. send it, and wait for the event of the token
 *   5. verify the transaction with all checks of a payment (payments/verify.ts)
 *
 * Payment and deployment rows follow in one transaction, in which the settlement becomes `settled` (projects/deploy.ts). A
 * process that dies anywhere after 2 leaves a pending row, which reconcile.ts brings to its end: the money becomes credit.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { crashPoint } from '@warren/kit/crash-point'
import { sql } from 'kysely'
import type { PublicClient } from 'viem'
import { ChainUnreachable } from '../chains/chains.ts'
import type { Chain, Token } from '../chains/table.ts'
import type { Tx } from '../db/connect.ts'
import type { PaymentTransport, SettlementRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { badGateway, GatewayError, tooMany } from '../http/errors.ts'
import type { QuoteKey } from '../payments/quotes.ts'
import { alreadyProcessed } from '../payments/record.ts'
import { findReceipt, type Verification, verifyPayment } from '../payments/verify.ts'
import { AUTHORIZATION_ABI, type Authorization, encodeTransfer } from './authorization.ts'
import { findUse } from './find-use.ts'
import { readFees, type Settler, type SignedTransaction, send, simulate } from './settler.ts'

/** A request waits this long for its chain. */
const WAIT_MS = 45_000
/** Longer than any request waits: the background must not credit what a request is about to. */
const LEASE_S = 120
const POLL_MS = 300
/** Of one wallet. */
const PENDING_MAX = 3
const PENDING_RETRY_S = 30
/** How far back another party may have sent the authorization: more than a quarter of an hour of the faster chain. */
const LOOK_BACK_BLOCKS = 4_000n
/** One number per chain: transactions of the settler are numbered per chain. */
const NUMBER_LOCK = 7_236_020
/** One number per payer. */
const PAYER_LOCK = 7_236_021

export type Settlement = { id: string; transport: PaymentTransport; chain: Chain; payer: string }
export type Settled = Verification & { settlement?: Settlement }

export async function settleAuthorization(
  deps: Deps & { settler: Settler },
  key: QuoteKey,
  {
    chain,
    token,
    transport,
    authorization,
  }: {
    chain: Chain
    token: Token
    transport: PaymentTransport
    authorization: Authorization
  },
): Promise<Settled> {
  const reader = deps.chains[chain.name]
  try {
    const prepared = await reader.read((client) => prepare(client, deps.settler, token, authorization))
    if ('refused' in prepared) return prepared
    const { fromBlock } = prepared
    const row = await recordIntent(deps, key, { chain, token, transport, authorization, fromBlock })
    await crashPoint('settle.intended')
    let own: `0x${string}` | undefined
    if (!prepared.isUsed) {
      const { raw, hash } = await signNext(deps, row, chain, token, encodeTransfer(authorization), prepared.gas)
      await crashPoint('settle.signed')
      await reader.read((client) => send(client, raw))
      await crashPoint('settle.sent')
      own = hash
    }
    const verification = await waitForPayment(deps, row, chain, token, own)
    if ('refused' in verification) return verification
    return { ...verification, settlement: { id: row.id, transport, chain, payer: row.payer } }
  } catch (error) {
    if (!(error instanceof ChainUnreachable)) throw error
    throw badGateway('Could not settle the payment. If it reaches the chain, it becomes credit of the wallet', error)
  }
}

type Prepared = { refused: string } | { isUsed: boolean; gas: bigint; fromBlock: bigint }

async function prepare(
  client: PublicClient,
  settler: Settler,
  token: Token,
  authorization: Authorization,
): Promise<Prepared> {
  const head = await client.getBlockNumber({ cacheTime: 0 })
  const simulated = await simulate(client, settler, token, encodeTransfer(authorization))
  if ('gas' in simulated) return { isUsed: false, gas: simulated.gas, fromBlock: head }
  const isUsed = await client.readContract({
    address: token.address,
    abi: AUTHORIZATION_ABI,
    functionName: 'authorizationState',
    args: [authorization.from, authorization.nonce],
  })
  if (!isUsed) return { refused: `the token refuses the transfer: ${simulated.reverted}` }
  return { isUsed, gas: 0n, fromBlock: head > LOOK_BACK_BLOCKS ? head - LOOK_BACK_BLOCKS : 0n }
}

type Intent = {
  chain: Chain
  token: Token
  transport: PaymentTransport
  authorization: Authorization
  fromBlock: bigint
}

/** Under a lock of the payer, so that parallel requests cannot pass its limit together. */
async function recordIntent({ db }: Deps, key: QuoteKey, intent: Intent): Promise<SettlementRow> {
  const payer = intent.authorization.from
  return db.transaction().execute(async (tx) => {
    await sql`select pg_advisory_xact_lock(${PAYER_LOCK}, hashtext(${payer}))`.execute(tx)
    await limitPending(tx, payer)
    return insert(tx, key, intent)
  })
}

/** A payer that spends its tokens elsewhere, just before our transaction, costs us gas. */
async function limitPending(tx: Tx, payer: string): Promise<void> {
  const { rows } = await sql<{ count: number }>`select count(*)::int as count from gateway.settlements
    where payer = ${payer} and status = 'pending'`.execute(tx)
  if (rows[0]!.count >= PENDING_MAX) throw tooMany('Payments of this wallet are on their way', PENDING_RETRY_S)
}

/** Throws 409 when the authorization was presented before. One that failed for good may be tried again. */
async function insert(tx: Tx, key: QuoteKey, intent: Intent): Promise<SettlementRow> {
  const { chain, token, transport, authorization, fromBlock } = intent
  const values = {
    amount_raw: authorization.value,
    valid_before: authorization.validBefore,
    transport,
    unique_name: key.uniqueName.toLowerCase(),
    months: key.months,
    status: 'pending' as const,
    from_block: fromBlock,
    calldata: null,
    settler: null,
    account_nonce: null,
    raw_transaction: null,
    sent_at: null,
    leased_until: sql<Date>`now() + make_interval(secs => ${LEASE_S})`,
  }
  const { from: payer, nonce } = authorization
  const row = await tx
    .insertInto('gateway.settlements')
    .values({ chain: chain.name, token: token.name, payer, nonce, ...values })
    .onConflict((conflict) =>
      conflict
        .columns(['chain', 'token', 'payer', 'nonce'])
        .doUpdateSet(values)
        .where('gateway.settlements.status', '=', 'failed'),
    )
    .returningAll()
    .executeTakeFirst()
  if (!row) throw alreadyProcessed()
  return row
}

/** The transaction is in the row when this returns. */
async function signNext(
  deps: Deps & { settler: Settler },
  row: SettlementRow,
  chain: Chain,
  token: Token,
  data: `0x${string}`,
  gas: bigint,
): Promise<SignedTransaction> {
  const { settler } = deps
  return deps.db.transaction().execute(async (tx) => {
    await sql`select pg_advisory_xact_lock(${NUMBER_LOCK}, ${chain.id})`.execute(tx)
    const { rows } = await sql<{ newest: bigint | null }>`select max(account_nonce) as newest from gateway.settlements
      where chain = ${chain.name} and settler = ${settler.address} and status = 'pending'`.execute(tx)
    const newest = rows[0]!.newest
    const { count, fees } = await deps.chains[chain.name].read(async (client) => ({
      count: await client.getTransactionCount({ address: settler.address, blockTag: 'pending' }),
      fees: await readFees(client),
    }))
    // A node may not have seen the newest transaction yet.
    const nonce = newest === null ? count : Math.max(count, Number(newest) + 1)
    const signed = await settler.sign(chain, { to: token.address, data, nonce, gas, ...fees })
    await tx
      .updateTable('gateway.settlements')
      .set({
        calldata: data,
        settler: settler.address,
        account_nonce: BigInt(nonce),
        raw_transaction: signed.raw,
        sent_at: sql<Date>`now()`,
      })
      .where('id', '=', row.id)
      .execute()
    return signed
  })
}

async function waitForPayment(
  deps: Deps,
  row: SettlementRow,
  chain: Chain,
  token: Token,
  own: `0x${string}` | undefined,
): Promise<Verification> {
  const deadline = Date.now() + WAIT_MS
  let refused = 'not found or not confirmed yet'
  do {
    const { use, isReverted } = await deps.chains[chain.name].read((client) => look(client, row, own))
    if (!use && isReverted) return { refused: 'the transfer was reverted' }
    if (use) {
      const verification = await verifyPayment(deps, { hash: use.hash, chain, token, wallet: row.payer })
      if ('payment' in verification) return verification
      refused = verification.refused
    }
    await delay(POLL_MS)
  } while (Date.now() < deadline)
  throw new GatewayError(502, `The payment is on its way (${refused}). It becomes credit of the wallet when it arrives`)
}

/** The receipt first: a transaction that is reverted because of another one has that one before it. */
async function look(client: PublicClient, row: SettlementRow, own: `0x${string}` | undefined) {
  const receipt = own && (await findReceipt(client, own))
  return { use: await findUse(client, row), isReverted: receipt?.status === 'reverted' }
}
