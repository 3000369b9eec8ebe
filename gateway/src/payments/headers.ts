/** The payment headers of a deploy request. */
import type { IncomingHttpHeaders } from 'node:http'
import { type Chain, DEFAULT_CHAIN, DEFAULT_TOKEN, findChain, findToken, type Token } from '../chains/table.ts'
import { badRequest } from '../http/errors.ts'

export type PaymentHeaders = {
  /** In lower case. */
  hash: `0x${string}` | undefined
  chain: Chain
  token: Token
  useExistingCredits: boolean
}

const HASH = /^0x[0-9a-fA-F]{64}$/

export function parsePaymentHeaders(headers: IncomingHttpHeaders): PaymentHeaders {
  const hash = read(headers, 'x-payment-tx')
  if (hash !== undefined && !HASH.test(hash)) {
    throw badRequest('X-Payment-Tx', 'must be the hash of a transaction: 0x and 64 hexadecimal digits')
  }
  const chain = findChain(read(headers, 'x-payment-chain') ?? DEFAULT_CHAIN)
  if (!chain) throw badRequest('X-Payment-Chain', 'must be arbitrum or base')
  const token = findToken(chain, read(headers, 'x-payment-token') ?? DEFAULT_TOKEN)
  if (!token) throw badRequest('X-Payment-Token', 'must be usdc or usdt')
  return {
    hash: hash?.toLowerCase() as `0x${string}` | undefined,
    chain,
    token,
    useExistingCredits: /^(?:true|1)$/i.test(read(headers, 'x-use-existing-credits') ?? ''),
  }
}

function read(headers: IncomingHttpHeaders, name: string): string | undefined {
  const value = headers[name]
  return typeof value === 'string' && value !== '' ? value : undefined
}
