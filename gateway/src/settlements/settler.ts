/**
 * The account that sends authorizations to the chains and pays their gas. Its transactions are numbered by the chain, and each
 * number must be used: a transaction that is missing stops all that follow. So a transaction is stored, signed, before it is
 * sent, and sent again until its number is used (reconcile.ts).
 */
import { readFile } from 'node:fs/promises'
import { keccak256, type PublicClient } from 'viem'
import { privateKeyToAccount } from 'viem/accounts'
import type { Chain, Token } from '../chains/table.ts'
import { type Config, PRIVATE_KEY } from '../config.ts'

type Hex = `0x${string}`
export type SignedTransaction = { raw: Hex; hash: Hex }
export type Fees = { maxFeePerGas: bigint; maxPriorityFeePerGas: bigint }

export type Settler = {
  address: Hex
  sign(chain: Chain, transaction: { to: Hex; data: Hex; nonce: number; gas: bigint } & Fees): Promise<SignedTransaction>
}

/** Undefined without a key: then there are no offers of x402 and MPP. */
export async function openSettler({ settlerKey, settlerKeyFile }: Config): Promise<Settler | undefined> {
  const key = settlerKey || (settlerKeyFile === '' ? '' : (await readFile(settlerKeyFile, 'utf8')).trim())
  if (key === '') return undefined
  if (!PRIVATE_KEY.test(key)) throw new Error('the key of the settler must be 0x and 64 hexadecimal digits')
  const account = privateKeyToAccount(key as Hex)
  return {
    address: account.address.toLowerCase() as Hex,
    async sign(chain, transaction) {
      const raw = await account.signTransaction({ type: 'eip1559', chainId: chain.id, ...transaction })
      return { raw, hash: keccak256(raw) }
    },
  }
}

/** Chains charge for what is used, and estimates are of the moment. */
const GAS_PERCENT = 150n

/** The gas that the transfer needs, or why the token refuses it. Sends nothing. */
export async function simulate(
  client: PublicClient,
  settler: Settler,
  token: Token,
  data: Hex,
): Promise<{ gas: bigint } | { reverted: string }> {
  try {
    const gas = await client.estimateGas({ account: settler.address, to: token.address, data })
    return { gas: (gas * GAS_PERCENT) / 100n }
  } catch (error) {
    const reason = findRevert(error)
    if (reason === undefined) throw error
    return { reverted: reason }
  }
}

/** Undefined for errors of the node, after which another node is asked. */
function findRevert(error: unknown): string | undefined {
  for (let one = error as { name?: string; reason?: string; cause?: unknown } | undefined; one; ) {
    if (one.name === 'ExecutionRevertedError') return one.reason ?? 'reverted'
    one = one.cause as typeof one
  }
  return undefined
}

/** Twice the current base fee: enough for some blocks of rising prices. */
export async function readFees(client: PublicClient): Promise<Fees> {
  const { maxFeePerGas, maxPriorityFeePerGas } = await client.estimateFeesPerGas()
  return { maxFeePerGas: maxFeePerGas * 2n, maxPriorityFeePerGas }
}

/** A node that has the transaction already, or whose chain has it, says so with an error; then it was sent. */
export async function send(client: PublicClient, raw: Hex): Promise<void> {
  try {
    await client.sendRawTransaction({ serializedTransaction: raw })
  } catch (error) {
    const text = String((error as { details?: string }).details ?? (error as Error).message)
    if (!/already known|already imported|nonce too low|known transaction/i.test(text)) throw error
  }
}
