/** Who comes in: credential, rate limit, permission, in this order. Ownership follows (load-own-sandbox.ts). */
import { failure } from '@warren/kit/failure'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { Deps } from '../deps.ts'
import { authenticate, authorize } from './auth.ts'
import { type Access, type Caller, callerKey } from './caller.ts'
import { RateLimiter } from './rate-limit.ts'

/** What a void token has under way may end by itself within this; together with the look for it less than 5 s. */
const VOID_TOKEN_GRACE_MS = 1_000

/** Public routes do not look at a credential, not even at a wrong one. */
export function addAccessControl(app: FastifyInstance, deps: Deps): void {
  const limiter = new RateLimiter(deps.config.rateLimitPerMinute)
  const count = (key: string) => {
    const retryAfterSeconds = limiter.take(key, Date.now())
    if (retryAfterSeconds === undefined) return
    deps.metrics.refused.inc({ reason: 'rate_limited' })
    throw failure('rate_limited', 'too many requests', { retryAfterSeconds })
  }

  const admit = (request: FastifyRequest, reply: FastifyReply, caller: Caller, access: Access, url: string) => {
    request.caller = caller
    count(callerKey(caller))
    authorize(caller, access, { url, sandboxId: sandboxIdOf(request, url) })
    if (caller.kind === 'token') endWithToken(deps, request, reply, caller.tokenHash)
  }
  const refuse = (request: FastifyRequest, error: unknown): never => {
    // Guessing costs the guesser's address; those who know a key are not held up by it.
    count(`address:${request.ip}`)
    throw error
  }

  const receive = (request: FastifyRequest, reply: FastifyReply): undefined | Promise<void> => {
    const { config, url = '' } = request.routeOptions
    const { access = 'public', skipRateLimit } = config
    if (access === 'public') {
      if (!skipRateLimit) count(`address:${request.ip}`)
      return undefined
    }
    let found: Caller | Promise<Caller>
    try {
      found = authenticate(deps, request, config.credentialIn)
    } catch (error) {
      return refuse(request, error)
    }
    if (!(found instanceof Promise)) return void admit(request, reply, found, access, url)
    return found.then(
      (caller) => admit(request, reply, caller, access, url),
      (error) => refuse(request, error),
    )
  }

  // By callback: nearly every credential is remembered, and then no promise is made.
  app.addHook('onRequest', (request, reply, done) => {
    let work: undefined | Promise<void>
    try {
      work = receive(request, reply)
    } catch (error) {
      return done(error as Error)
    }
    if (work) work.then(() => done(), done)
    else done()
  })
}

function sandboxIdOf(request: FastifyRequest, url: string): string | undefined {
  if (!url.startsWith('/v1/sandboxes/:id')) return undefined
  return (request.params as { id: string }).id
}

/**
 * Here, and not in the routes that stream: none of them can forget it. An upgraded connection leaves its response
 * behind, so the socket is cut, and it alone tells when such a one is over.
 */
function endWithToken(deps: Deps, request: FastifyRequest, reply: FastifyReply, tokenHash: string): void {
  const { socket } = request.raw
  let grace: NodeJS.Timeout | undefined
  const cut = () => {
    if (reply.raw.socket) reply.raw.destroy()
    else socket.destroy()
  }
  const remove = deps.tokenStreams.add(tokenHash, () => {
    grace = setTimeout(cut, VOID_TOKEN_GRACE_MS)
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
