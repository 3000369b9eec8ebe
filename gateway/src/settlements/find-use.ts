/**
 * Finds the transaction in which a token accepted an authorization. Usually it is ours; but anyone who saw the authorization
 * can send it, and then ours is reverted although the payment has arrived.
 */
import type { PublicClient } from 'viem'
import { CHAINS } from '../chains/table.ts'
import type { SettlementRow } from '../db/schema.ts'
import { AUTHORIZATION_ABI } from './authorization.ts'

/** Providers limit the range. An authorization is valid for 15 minutes at most: 3,600 blocks of the faster chain. */
const BLOCKS_MAX = 9_000n

export type Use = { hash: `0x${string}` }

export async function findUse(
  client: PublicClient,
  { chain, token, payer, nonce, from_block }: Pick<SettlementRow, 'chain' | 'token' | 'payer' | 'nonce' | 'from_block'>,
): Promise<Use | undefined> {
  const head = await client.getBlockNumber({ cacheTime: 0 })
  // A node that is behind does not know these blocks yet.
  if (head < from_block) return undefined
  const limit = from_block + BLOCKS_MAX
  const [event] = await client.getContractEvents({
    address: CHAINS[chain].tokens[token].address,
    abi: AUTHORIZATION_ABI,
    eventName: 'AuthorizationUsed',
    args: { authorizer: payer as `0x${string}`, nonce: nonce as `0x${string}` },
    fromBlock: from_block,
    toBlock: head > limit ? limit : 'latest',
    strict: true,
  })
  return event && !event.removed ? { hash: event.transactionHash } : undefined
}
