/**
 * The four headers of a signed request. Their raw strings are what was signed, so they are passed on unchanged. All shapes
 * are checked before anything is computed: the libraries behind it throw on many malformed values.
 */
import type { IncomingHttpHeaders } from 'node:http'
import { unauthorized } from '../http/errors.ts'

export type AuthHeaders = {
  wallet: `0x${string}`
  signature: `0x${string}`
  timestamp: string
  nonce: string
}

const SHAPES = {
  'x-wallet-address': /^0x[0-9a-fA-F]{40}$/,
  'x-signature': /^0x[0-9a-fA-F]{130}$/,
  'x-timestamp': /^\d{13}$/,
  'x-nonce': /^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$/,
} as const
type Name = keyof typeof SHAPES

const SPELLING: Record<Name, string> = {
  'x-wallet-address': 'X-Wallet-Address',
  'x-signature': 'X-Signature',
  'x-timestamp': 'X-Timestamp',
  'x-nonce': 'X-Nonce',
}

export function parseAuthHeaders(headers: IncomingHttpHeaders): AuthHeaders {
  for (const name of Object.keys(SHAPES) as Name[]) {
    const value = headers[name]
    if (value === undefined || value === '') throw unauthorized(`missing header ${SPELLING[name]}`)
    // A header that was sent twice arrives as one string with a comma, and fails here as well.
    if (typeof value !== 'string' || !SHAPES[name].test(value)) throw unauthorized(`malformed header ${SPELLING[name]}`)
  }
  return {
    wallet: headers['x-wallet-address'] as `0x${string}`,
    signature: headers['x-signature'] as `0x${string}`,
    timestamp: headers['x-timestamp'] as string,
    nonce: headers['x-nonce'] as string,
  }
}

/** The wallet that a request claims, in lower case, for counting only. */
export function claimedWallet(headers: IncomingHttpHeaders): string | undefined {
  const value = headers['x-wallet-address']
  return typeof value === 'string' && SHAPES['x-wallet-address'].test(value) ? value.toLowerCase() : undefined
}

export const signedMessage = ({ wallet, timestamp, nonce }: AuthHeaders): string => `${wallet}:${timestamp}:${nonce}`
