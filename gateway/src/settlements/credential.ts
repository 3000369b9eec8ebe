/**
 * Payments that come with the request: `PAYMENT-SIGNATURE` (x402 version 2) or `Authorization: Payment` (MPP). Both carry an
 * EIP-3009 authorization. Everything that can be known without a chain is checked here, before anything is written.
 */
import type { IncomingHttpHeaders } from 'node:http'
import { Challenge, Credential, evm, x402 } from 'mppx'
import { AUTHORIZED_TOKEN, type Chain, findChainById, type Token } from '../chains/table.ts'
import type { PaymentTransport } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { badRequest } from '../http/errors.ts'
import { type Authorization, isSignedByPayer } from './authorization.ts'
import { bodyDigestOf, realmOf } from './offers.ts'

export type PaymentCredential = {
  transport: PaymentTransport
  chainId: number
  asset: string
  /** What the client understood that it pays. */
  amount: string
  authorization: Authorization
  /** Of MPP: the offer that it answers. */
  challenge?: Challenge.Challenge
}

const X402_HEADER = 'payment-signature'
const X402_V1_HEADER = 'x-payment'
/** Some hundred bytes are usual. */
const HEADER_MAX = 16 * 1024

/** Undefined without such a header. Throws 400 for what cannot be read. */
export function parseCredential(headers: IncomingHttpHeaders): PaymentCredential | undefined {
  if (headers[X402_V1_HEADER] !== undefined) {
    throw badRequest('X-PAYMENT', 'is of x402 version 1; this gateway takes version 2, in PAYMENT-SIGNATURE')
  }
  const signature = headers[X402_HEADER]
  const authorization = headers.authorization
  const isMpp = authorization !== undefined && /^payment\s/i.test(authorization)
  const transports = [signature !== undefined, isMpp, headers['x-payment-tx'] !== undefined].filter(Boolean)
  if (transports.length > 1) {
    throw badRequest('payment', 'send one of X-Payment-Tx, PAYMENT-SIGNATURE and Authorization: Payment')
  }
  if (typeof signature === 'string') return read('PAYMENT-SIGNATURE', signature, parseX402)
  if (isMpp) return read('Authorization', authorization, parseMpp)
  return undefined
}

function read<Result>(name: string, value: string, parse: (value: string) => Result): Result {
  if (value.length > HEADER_MAX) throw badRequest(name, 'is too long')
  try {
    return parse(value)
  } catch {
    throw badRequest(name, 'is not a payment that this gateway can read')
  }
}

function parseX402(value: string): PaymentCredential {
  const { accepted, payload } = x402.Header.decodePaymentSignature(value)
  if (!('authorization' in payload)) throw new Error('not an EIP-3009 authorization')
  return {
    transport: 'x402',
    chainId: Number(accepted.network.slice('eip155:'.length)),
    asset: accepted.asset,
    amount: accepted.amount,
    authorization: readAuthorization({ ...payload.authorization, signature: payload.signature }),
  }
}

function parseMpp(value: string): PaymentCredential {
  const { challenge, payload } = Credential.deserialize(value)
  const request = evm.Types.ChargeRequestSchema.parse(challenge.request)
  return {
    transport: 'mpp',
    chainId: request.methodDetails.chainId,
    asset: request.currency,
    amount: request.amount,
    authorization: readAuthorization(evm.Types.AuthorizationPayloadSchema.parse(payload)),
    challenge,
  }
}

type Raw = Record<'from' | 'to' | 'value' | 'validAfter' | 'validBefore' | 'nonce' | 'signature', string>
const UINT256 = 1n << 256n

function readAuthorization(raw: Raw): Authorization {
  const [value, validAfter, validBefore] = [BigInt(raw.value), BigInt(raw.validAfter), BigInt(raw.validBefore)]
  if ([value, validAfter, validBefore].some((number) => number >= UINT256)) throw new Error('a number is too large')
  if (!/^0x[0-9a-fA-F]{130}$/.test(raw.signature)) throw new Error('not a signature of 65 bytes')
  const hex = (text: string) => text.toLowerCase() as `0x${string}`
  return {
    from: hex(raw.from),
    to: hex(raw.to),
    value,
    validAfter,
    validBefore,
    nonce: hex(raw.nonce),
    signature: hex(raw.signature),
  }
}

/** Time to send it, and for the chain to take it. */
const VALID_MIN_S = 20n
/** Offers ask for five minutes. An authorization that is valid for very long could be sent long after it was refused here. */
const VALID_MAX_S = 900n

export type Checked = { chain: Chain; token: Token } | { refused: string }

/** The wallet signed the request around it; `bodyDigest` is of that request. */
export async function checkCredential(
  deps: Pick<Deps, 'config' | 'now' | 'offerKey' | 'address'>,
  wallet: string,
  bodyDigest: string,
  credential: PaymentCredential,
): Promise<Checked> {
  const { authorization, challenge } = credential
  const chain = findChainById(credential.chainId)
  const token = chain?.tokens[AUTHORIZED_TOKEN]
  if (!chain || !token) return { refused: 'wrong chain' }
  if (!isSame(credential.asset, token.address)) return { refused: 'wrong token contract' }
  if (!isSame(authorization.to, deps.config.payTo)) return { refused: 'authorization is not for pay_to' }
  if (!isSame(authorization.from, wallet)) return { refused: 'authorization is from another wallet' }
  if (authorization.value.toString() !== credential.amount) return { refused: 'authorization has another amount' }
  const nowS = BigInt(Math.floor(deps.now().getTime() / 1000))
  if (authorization.validAfter > nowS) return { refused: 'authorization is not valid yet' }
  if (authorization.validBefore < nowS + VALID_MIN_S) return { refused: 'authorization has expired' }
  if (authorization.validBefore > nowS + VALID_MAX_S) return { refused: 'authorization is valid for too long' }
  if (challenge) {
    const refused = checkChallenge(deps, bodyDigest, challenge, authorization)
    if (refused) return { refused }
  }
  if (!(await isSignedByPayer(chain, token, authorization))) return { refused: 'authorization has a bad signature' }
  return { chain, token }
}

/** An offer of this gateway, for this body, that has not expired. The nonce of the authorization names it. */
function checkChallenge(
  deps: Pick<Deps, 'now' | 'offerKey' | 'address'>,
  bodyDigest: string,
  challenge: Challenge.Challenge,
  { nonce }: Authorization,
): string | undefined {
  if (challenge.realm !== realmOf(deps) || challenge.method !== 'evm' || challenge.intent !== 'charge') {
    return 'offer is not of this gateway'
  }
  if (!Challenge.verify(challenge, { secretKey: deps.offerKey })) return 'offer is not of this gateway'
  if (!challenge.expires || Date.parse(challenge.expires) <= deps.now().getTime()) return 'offer has expired'
  if (challenge.digest !== bodyDigestOf(bodyDigest)) return 'offer is for another request body'
  if (evm.Types.challengeHash(challenge).toLowerCase() !== nonce) return 'authorization is for another offer'
  return undefined
}

const isSame = (one: string, other: string): boolean => one.toLowerCase() === other.toLowerCase()
