/**
 * Decides which requests may proceed: route, credential, rate limit, permission, in this order, and before the body is
 * read. Ownership of the sandbox is checked next (load-own-sandbox.ts). Public routes ignore credentials, even ones that
 * are not valid.
 */

import { clientNetwork } from '@warren/kit/client-network'
import { Failure, failure, notFound } from '@warren/kit/failure'
import { RateLimiter } from '@warren/kit/rate-limit'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { Deps } from '../deps.ts'
import { authenticate, authorize } from './auth.ts'
import { type Access, type Caller, callerKey } from './caller.ts'
import { discardBody } from './refused-body.ts'

/**
 * Requests of a revoked access token may finish within this time before they are aborted. Together with the delay until
 * the revocation is noticed (access-tokens/end-revoked.ts) it stays under the promised 5 s.
 */
const REVOKED_TOKEN_GRACE_MS = 1_000

export function addAccessControl(app: FastifyInstance, deps: Deps): void {
  const limiter = new RateLimiter(deps.config.rateLimitPerMinute)
  const countRequest = (key: string) => {
    const retryAfterSeconds = limiter.take(key, Date.now())
    if (retryAfterSeconds === undefined) return
    deps.metrics.refused.inc({ reason: 'rate_limited' })
    throw failure('rate_limited', 'too many requests', { retryAfterSeconds })
  }

  const admit = (request: FastifyRequest, reply: FastifyReply, caller: Caller, access: Access, url: string) => {
    request.caller = caller
    if (caller.user.plan !== 'internal') countRequest(callerKey(caller))
    authorize(caller, access, { url, sandboxId: sandboxIdOf(request, url) })
    if (caller.kind === 'token') abortWhenRevoked(deps, request, reply, caller.tokenHash)
  }
  const addressKey = (request: FastifyRequest) => `address:${clientNetwork(request.ip)}`

  const checkRequest = (request: FastifyRequest, reply: FastifyReply): undefined | Promise<void> => {
    const { config, url = '' } = request.routeOptions
    const { access = 'public', skipRateLimit } = config
    if (access === 'public') {
      if (!skipRateLimit) countRequest(addressKey(request))
      if (request.is404) throw notFound('route')
      return undefined
    }
    // Counted by address before the lookup, and not counted if the credential turns out to be valid: guessing keys is
    // limited, also with many requests at once, and does not reach the database beyond the limit.
    let isCounted = false
    const beforeLookup = () => {
      countRequest(addressKey(request))
      isCounted = true
    }
    const found = authenticate(deps, request, { place: config.credentialIn, beforeLookup })
    if (!(found instanceof Promise)) return void admit(request, reply, found, access, url)
    const giveBack = () => {
      if (isCounted) limiter.giveBack(addressKey(request))
    }
    return found.then(
      (caller) => {
        giveBack()
        admit(request, reply, caller, access, url)
      },
      (error) => {
        // Not a guess: the credential could not be checked, for example because the database is unreachable.
        if (!(error instanceof Failure)) giveBack()
        throw error
      },
    )
  }

  // A callback instead of an async hook: nearly every credential is cached, and then no promise is created.
  app.addHook('onRequest', (request, reply, done) => {
    const refuse = (error: unknown) => {
      discardBody(request.raw)
      done(error as Error)
    }
    let checked: undefined | Promise<void>
    try {
      checked = checkRequest(request, reply)
    } catch (error) {
      return refuse(error)
    }
    const proceed = () => {
      if (request.raw.headers.expect !== undefined) reply.raw.writeContinue()
      done()
    }
    if (checked) checked.then(proceed, refuse)
    else proceed()
  })
}

function sandboxIdOf(request: FastifyRequest, url: string): string | undefined {
  if (!url.startsWith('/v1/sandboxes/:id')) return undefined
  return (request.params as { id: string }).id
}

/**
 * Registers the request with its token, so that it is aborted when the token is revoked. This happens here and not in
 * the streaming routes, so that no route can omit it. An upgraded connection is detached from its response: in that
 * case the socket is destroyed, and only the socket's `close` marks the end of the request.
 */
function abortWhenRevoked(deps: Deps, request: FastifyRequest, reply: FastifyReply, tokenHash: string): void {
  const { socket } = request.raw
  let grace: NodeJS.Timeout | undefined
  const abort = () => {
    if (reply.raw.socket) reply.raw.destroy()
    else socket.destroy()
  }
  const remove = deps.tokenStreams.add(tokenHash, () => {
    grace = setTimeout(abort, REVOKED_TOKEN_GRACE_MS)
  })
  const done = () => {
    remove()
    clearTimeout(grace)
    reply.raw.off('close', done)
    socket.off('close', done)
  }
  reply.raw.once('close', done)
  socket.once('close', done)
}
