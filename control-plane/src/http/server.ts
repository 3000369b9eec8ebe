/** The Fastify instance behind every route: its settings, its types, and how errors become replies. */
import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import { type Failure, failure, notFound } from '@warren/kit/failure'
import { ulid } from '@warren/protocol'
import Fastify, { type FastifyReply, type FastifyRequest } from 'fastify'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { JSON_BODY_MAX_BYTES } from './body.ts'
import type { Access, Caller, CredentialPlace } from './caller.ts'
import { isBodyTooLarge, renderError } from './errors.ts'
import type { Claim } from './idempotency.ts'
import { refuseConnection } from './refuse-connection.ts'
import { shouldUpgrade } from './upgrade.ts'
import { parseQuery, stripPrefix } from './urls.ts'
import { compileValidator } from './validation.ts'

export type App = ReturnType<typeof createFastify>

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Who may call the route. Required: the process does not start with a route that lacks it. */
    access?: Access
    /** Honours Idempotency-Key. */
    idempotent?: boolean
    /** Exempt from the rate limit. Set on the health probes. */
    skipRateLimit?: boolean
    /** The route reads the body as a stream, for as long as it takes. Set by `acceptRawBodies`. */
    rawBody?: boolean
    /** A further place for the credential, for clients that cannot send our headers. */
    credentialIn?: CredentialPlace
  }
  interface FastifyInstance {
    /** All registered routes. Tests iterate over it so that they cannot miss one. */
    routeList: { method: string; url: string }[]
  }
  interface FastifyRequest {
    caller: Caller
    /** Set by `loadOwnSandbox`. */
    sandbox: SandboxRow
    idempotency: Claim | undefined
    /** Set for routes that the audit log records. */
    auditId: string | undefined
  }
}

/**
 * Longer than the idle timeout of common load balancers: they close idle connections first and therefore never reuse one
 * that is being closed here.
 */
const KEEP_ALIVE_MS = 75_000
/** For a request head, from the start of the connection or the first byte of the head. */
const HEAD_MS = 20_000
const HEAD_CHECK_MS = 5_000

export function createServer(deps: Deps): App {
  const app = createFastify(deps)
  // Declared here so that all request objects have the same shape. Hooks set the values.
  app.decorateRequest('caller', null as never)
  app.decorateRequest('sandbox', null as never)
  app.decorateRequest('idempotency', undefined)
  app.decorateRequest('auditId', undefined)
  app.decorate('routeList', [])
  app.setValidatorCompiler(compileValidator)
  app.setErrorHandler((error, request, reply) => replyWithError(deps, error, request, reply))
  app.setNotFoundHandler((request, reply) => replyWithError(deps, notFound('route'), request, reply))
  app.addHook('onRequest', (request, reply, done) => {
    reply.header('X-Request-Id', request.id)
    done()
  })
  return app
}

function createFastify(deps: Deps) {
  const { baseUrl, trustedProxies } = deps.config
  return Fastify({
    logger: false,
    trustProxy: trustedProxies.length > 0 ? trustedProxies : false,
    bodyLimit: JSON_BODY_MAX_BYTES,
    genReqId: requestId,
    rewriteUrl: (request) => stripPrefix(request.url ?? '/', baseUrl),
    routerOptions: { ignoreTrailingSlash: true, maxParamLength: 1024, querystringParser: parseQuery },
    http: {
      shouldUpgradeCallback: shouldUpgrade,
      keepAliveTimeout: KEEP_ALIVE_MS,
      headersTimeout: HEAD_MS,
      connectionsCheckingInterval: HEAD_CHECK_MS,
      // Uploads and streams may last for hours. JSON bodies have a limit (body.ts).
      requestTimeout: 0,
    },
    // During shutdown, requests that still arrive on open connections are served.
    return503OnClosing: false,
    forceCloseConnections: 'idle',
    frameworkErrors: (error, request, reply) => replyWithError(deps, error, request, reply),
    clientErrorHandler: (error, socket) => rejectMalformed(deps, error, socket),
  }).withTypeProvider<TypeBoxTypeProvider>()
}

function replyWithError(deps: Deps, error: unknown, request: FastifyRequest, reply: FastifyReply) {
  const { status, body, retryAfterSeconds, unexpected } = renderError(error)
  if (unexpected) {
    deps.log.error({ err: error, request: request.id, route: request.routeOptions?.url }, 'unexpected error')
  }
  if (retryAfterSeconds !== undefined) reply.header('Retry-After', retryAfterSeconds)
  // Fastify would close the connection, and a client that is still sending would see a reset instead of this reply.
  // Node discards the rest of the body, for as long as it keeps an idle connection open.
  if (isBodyTooLarge(error)) reply.header('Connection', 'keep-alive')
  return reply.header('X-Request-Id', request.id).code(status).type('application/json').send(body)
}

/** What is not a whole HTTP request never reaches a route. */
function rejectMalformed(deps: Deps, error: Error & { code?: string }, socket: Socket): void {
  const isLate = error.code === 'ERR_HTTP_REQUEST_TIMEOUT'
  deps.metrics.refused.inc({ reason: isLate ? 'late' : 'malformed' })
  // A client may open a connection ahead of its first request. It must not find a response there.
  const isUnused = socket.bytesRead === 0
  if (error.code === 'ECONNRESET' || !socket.writable || isUnused) socket.destroy()
  else refuseConnection(socket, isLate ? LATE_HEAD : malformedHead(error.code))
}

const LATE_HEAD = failure('request_timeout', 'the request head did not arrive in time')

const malformedHead = (code: string | undefined): Failure =>
  failure(
    'validation_failed',
    code === 'HPE_HEADER_OVERFLOW' ? 'the request head is too large' : 'this is not an HTTP request',
  )

/** Generated ids are a random prefix per process and a counter, which is cheaper than a random id per request. */
const PROCESS_PREFIX = ulid()
let generatedIds = 0

/** Accepts the client's id if it is safe to write to a log and a header. */
function requestId(request: IncomingMessage): string {
  const given = request.headers['x-request-id']
  if (typeof given === 'string' && /^[\w.:-]{1,128}$/.test(given)) return given
  generatedIds++
  return `${PROCESS_PREFIX}-${generatedIds.toString(36)}`
}
