/**
 * Checks on the chain that a transaction pays us. Nothing is written, so a transaction that is refused here can be
 * presented again. All reads go to one endpoint, whose chain id is checked with them (chains/chains.ts).
 *
 * Only events of the token's contract count: who paid, whom and how much is what the token says, not what the transaction
 * or its calldata say. That is right for contract wallets, routers and relayers too, and fake tokens say nothing here.
 */
import { type PublicClient, parseAbi, parseEventLogs, type TransactionReceipt } from 'viem'
import { ChainUnreachable } from '../chains/chains.ts'
import { getRecipientSince } from '../chains/recipients.ts'
import type { Chain, Token } from '../chains/table.ts'
import type { Finality } from '../config.ts'
import type { Deps } from '../deps.ts'
import { badGateway } from '../http/errors.ts'
import { toMicro } from './money.ts'

export type VerifiedPayment = {
  hash: `0x${string}`
  chain: Chain
  token: Token
  amountMicro: bigint
  blockNumber: bigint
  blockHash: `0x${string}`
}
export type Verification = { payment: VerifiedPayment } | { refused: string }

type Question = { hash: `0x${string}`; chain: Chain; token: Token; wallet: string }

const TRANSFER = parseAbi(['event Transfer(address indexed from, address indexed to, uint256 value)'])
const NOT_CONFIRMED = 'not found or not confirmed yet'

/** Throws 502 when no endpoint answers. */
export async function verifyPayment(deps: Deps, question: Question): Promise<Verification> {
  const since = await getRecipientSince(deps)
  const reader = deps.chains[question.chain.name]
  try {
    return await reader.read((client) => ask(client, question, reader.finality, deps.config.payTo, since))
  } catch (error) {
    if (!(error instanceof ChainUnreachable)) throw error
    throw badGateway('Could not verify payment, the hash was not consumed', error)
  }
}

async function ask(
  client: PublicClient,
  { hash, chain, token, wallet }: Question,
  finality: Finality,
  payTo: string,
  since: Date,
): Promise<Verification> {
  const receipt = await findReceipt(client, hash)
  if (!receipt) return { refused: NOT_CONFIRMED }
  if (receipt.status !== 'success') return { refused: 'transaction was reverted' }
  const block = await findCanonicalBlock(client, receipt)
  if (!block || !(await hasReached(client, finality, receipt.blockNumber))) return { refused: 'not confirmed yet' }

  const transfers = readTransfers(receipt, token, wallet, payTo)
  if ('refused' in transfers) return transfers
  if (Number(block.timestamp) * 1000 < Math.floor(since.getTime() / 1000) * 1000) {
    return { refused: 'transaction is older than the receiving address' }
  }
  const amountMicro = toMicro(transfers.raw, token)
  return {
    payment: { hash, chain, token, amountMicro, blockNumber: receipt.blockNumber, blockHash: receipt.blockHash },
  }
}

export async function findReceipt(client: PublicClient, hash: `0x${string}`): Promise<TransactionReceipt | undefined> {
  try {
    return await client.getTransactionReceipt({ hash })
  } catch (error) {
    if ((error as Error).name === 'TransactionReceiptNotFoundError') return undefined
    throw error
  }
}

/** Undefined unless the chain has exactly this block at its height: a node may show receipts of blocks not sealed yet. */
async function findCanonicalBlock(client: PublicClient, receipt: TransactionReceipt) {
  const block = await findBlock(client, receipt.blockNumber)
  return block?.hash === receipt.blockHash ? block : undefined
}

export async function findBlock(client: PublicClient, blockNumber: bigint) {
  try {
    return await client.getBlock({ blockNumber })
  } catch (error) {
    if ((error as Error).name === 'BlockNotFoundError') return undefined
    throw error
  }
}

export async function hasReached(client: PublicClient, blockTag: Finality, blockNumber: bigint): Promise<boolean> {
  try {
    const head = await client.getBlock({ blockTag })
    return head.number !== null && head.number >= blockNumber
  } catch (error) {
    if ((error as Error).name === 'BlockNotFoundError') return false // The chain has no safe block yet.
    throw error
  }
}

/** The sum of all transfers of the token from the wallet to the recipient, or why there is none. */
export function readTransfers(
  receipt: Pick<TransactionReceipt, 'logs'>,
  token: Token,
  wallet: string,
  payTo: string,
): { raw: bigint } | { refused: string } {
  const transfers = parseEventLogs({ abi: TRANSFER, eventName: 'Transfer', logs: receipt.logs, strict: true })
  const received = transfers.filter(({ args, removed }) => !removed && isSame(args.to, payTo) && args.value > 0n)
  const ofToken = received.filter(({ address }) => isSame(address, token.address))
  if (ofToken.length === 0) {
    return { refused: received.length > 0 ? 'wrong token contract' : `no transfer of ${token.name} to pay_to` }
  }
  const own = ofToken.filter(({ args }) => isSame(args.from, wallet))
  if (own.length === 0) return { refused: 'transfer is from another wallet' }
  return { raw: own.reduce((sum, { args }) => sum + args.value, 0n) }
}

const isSame = (one: string, other: string): boolean => one.toLowerCase() === other.toLowerCase()
