/**
 * The chains and tokens in which payments are accepted. Symbols and decimals are stated here and never read from a
 * contract. Other tokens with similar names, such as bridged variants, are not in the table and therefore not accepted.
 */
export const CHAIN_NAMES = ['arbitrum', 'base'] as const
export type ChainName = (typeof CHAIN_NAMES)[number]
export const TOKEN_NAMES = ['usdc', 'usdt'] as const
export type TokenName = (typeof TOKEN_NAMES)[number]

export type Token = { name: TokenName; symbol: string; address: `0x${string}`; decimals: number }
/** The token that takes signed authorizations (EIP-3009), and its EIP-712 domain, the same on all chains. */
export const AUTHORIZED_TOKEN: TokenName = 'usdc'
export const AUTHORIZATION_DOMAIN = { name: 'USD Coin', version: '2' } as const
export type Chain = { name: ChainName; id: number; tokens: Record<TokenName, Token> }

const token = (name: TokenName, symbol: string, address: `0x${string}`): Token => ({
  name,
  symbol,
  address,
  decimals: 6,
})

export const CHAINS: Record<ChainName, Chain> = {
  arbitrum: {
    name: 'arbitrum',
    id: 42161,
    tokens: {
      usdc: token('usdc', 'USDC', '0xaf88d065e77c8cC2239327C5EDb3A432268e5831'),
      usdt: token('usdt', 'USDT', '0xFd086bC7CD5C481DCC9C85ebE478A1C0b69FCbb9'),
    },
  },
  base: {
    name: 'base',
    id: 8453,
    tokens: {
      usdc: token('usdc', 'USDC', '0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913'),
      usdt: token('usdt', 'USDT', '0xfde4C96c8593536E31F229EA8f37b2ADa2699bb2'),
    },
  },
}

export const DEFAULT_CHAIN: ChainName = 'arbitrum'
export const DEFAULT_TOKEN: TokenName = 'usdc'

/** Ignores case. Undefined for an unknown name. */
export const findChain = (name: string): Chain | undefined => {
  const known = CHAIN_NAMES.find((one) => one === name.toLowerCase())
  return known && CHAINS[known]
}
export const findChainById = (id: number): Chain | undefined => Object.values(CHAINS).find((chain) => chain.id === id)
export const findToken = (chain: Chain, name: string): Token | undefined => {
  const known = TOKEN_NAMES.find((one) => one === name.toLowerCase())
  return known && chain.tokens[known]
}

/** Chain entries as the API shows them. */
export const listChains = () =>
  CHAIN_NAMES.map((name) => ({
    chain: name as string,
    chain_id: CHAINS[name].id,
    tokens: [...TOKEN_NAMES] as string[],
  }))
