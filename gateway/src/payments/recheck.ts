/**
 * Reads accepted payments again until their block is safe.
 *
 * A payment is accepted in the newest block, which a chain may still replace. When the chain has another block at that
 * height, the transaction either is in another block by now, and the payment follows it, or is gone: then the credit is
 * taken back, projects without credit stop, and the hash may be presented again. Whatever a node merely does not know yet
 * decides nothing.
 *
 * Once per payment, the balance of the recipient is compared with the transfers of that block, which finds tokens that
 * take a fee on the way.
 */
import { erc20Abi, type PublicClient, parseAbi } from 'viem'
import type { ChainReader } from '../chains/chains.ts'
import { CHAIN_NAMES, CHAINS } from '../chains/table.ts'
import type { PaymentRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import type { Sweep } from '../sweep.ts'
import { toMicro } from './money.ts'
import { addEntry, lockWallet } from './pool.ts'
import { cancelDeployments, pauseProjects } from './stop-unpaid.ts'
import { findBlock, findReceipt, hasReached, readTransfers } from './verify.ts'

/** Of one chain, per run. */
const BATCH = 100
const TRANSFER = parseAbi(['event Transfer(address indexed from, address indexed to, uint256 value)'])[0]

export const recheckPayments: Sweep = {
  name: 'recheck-payments',
  everyMs: 10_000,
  async run(deps) {
    await Promise.all(
      CHAIN_NAMES.map(async (chain) => {
        const rows = await deps.db
          .selectFrom('gateway.payments')
          .selectAll()
          .where('status', '=', 'accepted')
          .where('chain', '=', chain)
          .orderBy('checked_at')
          .limit(BATCH)
          .execute()
        for (const payment of rows) await recheck(deps, deps.chains[chain], payment)
      }),
    )
  },
}

type Finding =
  | { kind: 'waiting' }
  | { kind: 'safe' }
  | { kind: 'moved'; blockNumber: bigint; blockHash: string }
  | { kind: 'gone' }

async function recheck(deps: Deps, reader: ChainReader, payment: PaymentRow): Promise<void> {
  // First, so that a payment that cannot be read goes to the end of the list and does not keep the others waiting.
  await deps.db
    .updateTable('gateway.payments')
    .set({ checked_at: deps.now() })
    .where('hash', '=', payment.hash)
    .execute()
  const finding = await reader.read((client) => look(client, payment, deps.config.payTo))
  if (!payment.balance_checked && finding.kind !== 'gone') await checkBalance(deps, reader, payment)
  if (finding.kind === 'gone') return takeBack(deps, payment)
  const changes = {
    waiting: {},
    safe: { status: 'safe' as const },
    moved: finding.kind === 'moved' ? { block_number: finding.blockNumber, block_hash: finding.blockHash } : {},
  }[finding.kind]
  await deps.db
    .updateTable('gateway.payments')
    .set({ ...changes, balance_checked: true })
    .where('hash', '=', payment.hash)
    .where('block_hash', '=', payment.block_hash)
    .where('status', '=', 'accepted')
    .execute()
}

async function look(client: PublicClient, payment: PaymentRow, payTo: string): Promise<Finding> {
  const block = await findBlock(client, payment.block_number)
  if (!block?.hash) return { kind: 'waiting' }
  if (block.hash === payment.block_hash) {
    return (await hasReached(client, 'safe', payment.block_number)) ? { kind: 'safe' } : { kind: 'waiting' }
  }
  const receipt = await findReceipt(client, payment.hash as `0x${string}`)
  if (!receipt) return { kind: 'gone' }
  const sealed = await findBlock(client, receipt.blockNumber)
  if (sealed?.hash !== receipt.blockHash) return { kind: 'waiting' }
  if (receipt.status !== 'success') return { kind: 'gone' }
  const token = CHAINS[payment.chain].tokens[payment.token]
  const transfers = readTransfers(receipt, token, payment.wallet, payTo)
  const isSame = 'raw' in transfers && toMicro(transfers.raw, token) === payment.amount_micro
  return isSame ? { kind: 'moved', blockNumber: receipt.blockNumber, blockHash: receipt.blockHash } : { kind: 'gone' }
}

/** Exported for tests of the money. */
export async function takeBack(deps: Deps, payment: PaymentRow): Promise<void> {
  const { hash, wallet, amount_micro: amountMicro } = payment
  await deps.db.transaction().execute(async (tx) => {
    const before = (await lockWallet(tx, wallet))!
    const { numUpdatedRows } = await tx
      .updateTable('gateway.payments')
      .set({ status: 'orphaned', checked_at: deps.now() })
      .where('hash', '=', hash)
      .where('block_hash', '=', payment.block_hash)
      .where('status', '=', 'accepted')
      .executeTakeFirstOrThrow()
    if (numUpdatedRows === 0n) return // Another process was faster, or it was presented again.
    await addEntry(tx, { kind: 'reversal', wallet, amountMicro: -amountMicro, hash })
    if (before - amountMicro > 0n) return
    await cancelDeployments(tx, wallet, 'the chain dropped the payment for it')
    await pauseProjects(tx, wallet, deps.now())
  })
  deps.log.warn({ hash, wallet, chain: payment.chain }, 'the chain dropped a payment; its credit was taken back')
}

/** Only an alert: what the token's event states was credited. Nodes that do not keep old states cannot answer. */
async function checkBalance(deps: Deps, reader: ChainReader, payment: PaymentRow): Promise<void> {
  const payTo = deps.config.payTo.toLowerCase() as `0x${string}`
  const token = CHAINS[payment.chain].tokens[payment.token]
  const balanceAt = (client: PublicClient, blockNumber: bigint) =>
    client.readContract({
      address: token.address,
      abi: erc20Abi,
      functionName: 'balanceOf',
      args: [payTo],
      blockNumber,
    })
  try {
    const { rose, stated } = await reader.read(async (client) => {
      const [before, after, logs] = await Promise.all([
        balanceAt(client, payment.block_number - 1n),
        balanceAt(client, payment.block_number),
        client.getLogs({
          address: token.address,
          event: TRANSFER,
          blockHash: payment.block_hash as `0x${string}`,
          strict: true,
        }),
      ])
      const sum = (side: 'from' | 'to') =>
        logs
          .filter(({ args }) => args[side].toLowerCase() === payTo)
          .reduce((total, { args }) => total + args.value, 0n)
      return { rose: after - before, stated: sum('to') - sum('from') }
    })
    if (rose >= stated) return
    deps.log.error(
      { hash: payment.hash, chain: payment.chain, token: payment.token, rose: String(rose), stated: String(stated) },
      'ALERT: the receiving address got less than the token states; the token may take a fee',
    )
  } catch (error) {
    deps.log.warn({ hash: payment.hash, err: error }, 'failed to compare the balance of the receiving address')
  }
}
