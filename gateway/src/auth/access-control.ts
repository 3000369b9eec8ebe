/**
 * Decides who may call a route before its body is read. The cheapest checks come first, and nothing is written before the
 * signature holds:
 *
 *   1. the rate of the client's address, and of the wallet that it claims
 *   2. all four headers present and well formed
 *   3. the timestamp, at most 60 s from our clock in both directions
 *   4. the signature over the raw header strings
 *   5. the rate of the verified wallet. It counts only now, or anyone could lock a wallet out
 *   6. the nonce, used up from here on even if the request fails later
 *
 * Signatures are never logged: a request that was refused for its timestamp has not used its nonce.
 */
import { clientNetwork } from '@warren/kit/client-network'
import type { FastifyRequest } from 'fastify'
import type { Deps } from '../deps.ts'
import { tooMany, unauthorized } from '../http/errors.ts'
import { RateLimiter, type RateResult } from '../http/rate-limiter.ts'
import { type App, isAgentPath } from '../http/server.ts'
import { isContractSignature } from './contract-wallet.ts'
import { type AuthHeaders, claimedWallet, parseAuthHeaders, signedMessage } from './headers.ts'
import { SKEW_MAX_MS, useNonce } from './nonces.ts'

/** Each costs a call to a chain node, which the caller has not paid for. */
const CONTRACT_CHECKS_PER_MINUTE = 6

type Limiters = Record<'address' | 'claim' | 'wallet' | 'contract', RateLimiter>

export function addAccessControl(app: App, deps: Deps): void {
  const { rateLimitPerMinute, addressRateLimitPerMinute } = deps.config
  const limiters: Limiters = {
    address: new RateLimiter(addressRateLimitPerMinute),
    claim: new RateLimiter(rateLimitPerMinute),
    wallet: new RateLimiter(rateLimitPerMinute),
    contract: new RateLimiter(Math.min(CONTRACT_CHECKS_PER_MINUTE, rateLimitPerMinute || CONTRACT_CHECKS_PER_MINUTE)),
  }
  app.addHook('onRequest', async (request) => {
    // Unknown routes below /agent are counted too.
    if (isAgentPath(request)) limitAddress(deps, limiters, request)
    if (request.routeOptions.config.signature !== 'required') return
    request.wallet = await authenticate(deps, limiters, request)
  })
}

function limitAddress(deps: Deps, limiters: Limiters, request: FastifyRequest): void {
  const network = clientNetwork(request.ip)
  const nowMs = deps.now().getTime()
  check(limiters.address.take(network, nowMs))
  check(limiters.claim.take(`${network} ${claimedWallet(request.headers) ?? ''}`, nowMs))
}

async function authenticate(deps: Deps, limiters: Limiters, request: FastifyRequest): Promise<string> {
  const headers = parseAuthHeaders(request.headers)
  const timestampMs = Number(headers.timestamp)
  if (Math.abs(deps.now().getTime() - timestampMs) > SKEW_MAX_MS) throw unauthorized('expired timestamp')
  if (!(await isSignedBy(deps, limiters, request, headers))) throw unauthorized('bad signature')

  const wallet = headers.wallet.toLowerCase()
  check(limiters.wallet.take(wallet, deps.now().getTime()))
  if (!(await useNonce(deps, wallet, headers.nonce, timestampMs))) throw unauthorized('nonce reused')
  return wallet
}

async function isSignedBy(
  deps: Deps,
  limiters: Limiters,
  request: FastifyRequest,
  headers: AuthHeaders,
): Promise<boolean> {
  const message = signedMessage(headers)
  const signer = await deps.verifier.recover(message, headers.signature)
  if (signer === headers.wallet.toLowerCase()) return true
  if (!deps.config.contractWallets) return false
  check(limiters.contract.take(clientNetwork(request.ip), deps.now().getTime()))
  return isContractSignature(deps, request.headers['x-payment-chain'], headers.wallet, message, headers.signature)
}

function check({ isAllowed, limit, remaining, retryAfterS, resetS }: RateResult): void {
  if (isAllowed) return
  throw tooMany('Rate limited', retryAfterS, {
    'X-RateLimit-Limit': limit,
    'X-RateLimit-Remaining': remaining,
    'X-RateLimit-Reset': resetS,
  })
}
