import { erc20Abi } from 'viem'
import type { Deps } from '../deps.ts'
import { badGateway, badRequest } from '../http/errors.ts'
import { ChainUnreachable } from './chains.ts'
import { DEFAULT_CHAIN, findChain, TOKEN_NAMES } from './table.ts'

const ADDRESS = /^0x[0-9a-fA-F]{40}$/

/** One call per token, because test chains have no contract that combines them. */
export async function getBalances(deps: Deps, address: string, chainName = DEFAULT_CHAIN as string) {
  if (!ADDRESS.test(address)) throw badRequest('address', 'must be 0x and 40 hexadecimal digits')
  const chain = findChain(chainName)
  if (!chain) throw badRequest('chain', 'must be arbitrum or base')
  const tokens = TOKEN_NAMES.map((name) => chain.tokens[name])
  try {
    const raw = await deps.chains[chain.name].read((client) =>
      Promise.all(
        tokens.map((token) =>
          client.readContract({
            address: token.address,
            abi: erc20Abi,
            functionName: 'balanceOf',
            // In lower case the library does not demand a checksum, which callers may have lost.
            args: [address.toLowerCase() as `0x${string}`],
          }),
        ),
      ),
    )
    const balances = tokens.map((token, i) => ({
      token: token.name as string,
      symbol: token.symbol,
      address: token.address as string,
      balance: formatUnits(raw[i]!, token.decimals),
      balance_raw: String(raw[i]!),
      decimals: token.decimals,
    }))
    return { address, chain: chain.name as string, chain_id: chain.id, balances }
  } catch (error) {
    if (error instanceof ChainUnreachable) throw badGateway(`Could not read balances on ${chain.name}`, error)
    throw error
  }
}

/** With all decimals: 18 USDC are `18.000000`. */
export function formatUnits(raw: bigint, decimals: number): string {
  const digits = raw.toString().padStart(decimals + 1, '0')
  return `${digits.slice(0, -decimals)}.${digits.slice(-decimals)}`
}
