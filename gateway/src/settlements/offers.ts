/**
 * Offers beside the body of a 402: `PAYMENT-REQUIRED` (x402 version 2) and `WWW-Authenticate: Payment` (MPP). Both ask for the
 * same transfer, one offer per chain. There are none without a settler, because nothing could bring them to a chain.
 *
 * An offer of MPP is not stored: its id is a MAC over all of it, the digest of the request body included.
 */
import { Challenge, x402 } from 'mppx'
import { AUTHORIZATION_DOMAIN, AUTHORIZED_TOKEN, CHAINS, type Chain } from '../chains/table.ts'
import type { Deps } from '../deps.ts'
import { FLOOR_MICRO, maxMicro, toTokenRaw } from '../payments/money.ts'

const VALID_S = 300

type Context = Pick<Deps, 'config' | 'now' | 'offerKey' | 'address' | 'settler'>
export type Offer = { dueMicro: bigint; error: string; bodyDigest: string; first: Chain }

export function renderOffers(deps: Context, offer: Offer): Record<string, string> {
  if (!deps.settler || offer.dueMicro <= 0n) return {}
  // A smaller amount would cost more to settle than it is worth. The excess is credit.
  const dueMicro = maxMicro(offer.dueMicro, FLOOR_MICRO)
  const chains = [offer.first, ...Object.values(CHAINS).filter((chain) => chain !== offer.first)]
  return {
    'PAYMENT-REQUIRED': renderX402(deps, chains, dueMicro, offer.error),
    'WWW-Authenticate': chains.map((chain) => renderChallenge(deps, chain, dueMicro, offer.bodyDigest)).join(', '),
  }
}

function renderX402({ config, address }: Context, chains: Chain[], dueMicro: bigint, error: string): string {
  return x402.Header.encodePaymentRequired({
    x402Version: 2,
    error,
    resource: { url: `${address.url}/agent/deploy`, description: 'Deploy a project', mimeType: 'application/json' },
    accepts: chains.map((chain) => ({
      scheme: 'exact' as const,
      network: `eip155:${chain.id}` as const,
      asset: chain.tokens[AUTHORIZED_TOKEN].address,
      amount: toTokenRaw(dueMicro, chain.tokens[AUTHORIZED_TOKEN]).toString(),
      payTo: config.payTo,
      maxTimeoutSeconds: VALID_S,
      extra: { ...AUTHORIZATION_DOMAIN, assetTransferMethod: 'eip3009' },
    })),
  })
}

function renderChallenge(deps: Context, chain: Chain, dueMicro: bigint, bodyDigest: string): string {
  const token = chain.tokens[AUTHORIZED_TOKEN]
  return Challenge.serialize(
    Challenge.from({
      secretKey: deps.offerKey,
      realm: realmOf(deps),
      method: 'evm',
      intent: 'charge',
      description: 'Deploy a project',
      digest: bodyDigestOf(bodyDigest),
      expires: new Date(deps.now().getTime() + VALID_S * 1_000).toISOString(),
      request: {
        amount: toTokenRaw(dueMicro, token).toString(),
        currency: token.address,
        methodDetails: { chainId: chain.id, credentialTypes: ['authorization'], decimals: token.decimals },
        recipient: deps.config.payTo,
      },
    }),
  )
}

export const realmOf = ({ address }: Pick<Deps, 'address'>): string => new URL(address.url).hostname

/** As in RFC 9530, from the hexadecimal SHA-256 of the request body. */
export const bodyDigestOf = (hex: string): string => `sha-256=${Buffer.from(hex, 'hex').toString('base64')}`
