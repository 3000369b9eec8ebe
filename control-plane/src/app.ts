/**
 * The front door. A request passes, in this order: its id, its credential, the rate limit, what the credential may
 * do, whose sandbox it is (404), its body (400), and then its verb.
 */

import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import { notFound } from '@warren/kit/failure'
import { ulid } from '@warren/protocol'
import Fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify'
import { accessTokenRoutes } from './access-tokens/routes.ts'
import { bandwidthRoutes } from './bandwidth/routes.ts'
import { catalogRoutes } from './catalog/routes.ts'
import type { SandboxRow } from './db/schema.ts'
import type { Deps } from './deps.ts'
import { diskRoutes } from './disks/routes.ts'
import { describeApi, docsRoutes } from './docs/openapi.ts'
import { egressRoutes } from './egress/routes.ts'
import { processRoutes } from './guest/process-routes.ts'
import { guestRoutes } from './guest/routes.ts'
import { shellRoutes } from './guest/shell-routes.ts'
import { healthRoutes } from './health/routes.ts'
import { hostRoutes } from './hosts/routes.ts'
import { admitRequests } from './http/admit.ts'
import { acceptJsonBodies, JSON_BODY_MAX_BYTES } from './http/body.ts'
import type { Access, Caller, CredentialPlace } from './http/callers.ts'
import { isBodyTooLarge, renderError } from './http/errors.ts'
import { type Claim, honourIdempotencyKeys } from './http/idempotency.ts'
import { routeUpgrades, shouldUpgrade } from './http/upgrade.ts'
import { parseQuery, stripPrefix } from './http/urls.ts'
import { compileValidator } from './http/validation.ts'
import { mcpRoutes } from './mcp/routes.ts'
import { networkRoutes } from './networks/routes.ts'
import { observeRequests } from './observe/request-log.ts'
import type { Tracing } from './observe/tracing.ts'
import { sandboxRoutes } from './sandboxes/routes.ts'
import { userRoutes } from './users/routes.ts'

export type App = ReturnType<typeof createFastify>

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Every route says who may use it; one that does not is refused at start. */
    access?: Access
    /** Honours Idempotency-Key. */
    idempotent?: boolean
    /** Outside the rate limit: the health probes. */
    unlimited?: boolean
    /** Where else than in its headers a credential may be, for clients that cannot send those. */
    credentialIn?: CredentialPlace
  }
  interface FastifyInstance {
    /** All that is served, as it was registered: for tests that must not miss a route. */
    routeList: { method: string; url: string }[]
  }
  interface FastifyRequest {
    caller: Caller
    /** Set by `ownSandbox`. */
    sandbox: SandboxRow
    idempotency: Claim | undefined
  }
}

const VERSION = '0.1.0'
/** A load balancer in front must not keep a connection longer than we do. */
const KEEP_ALIVE_MS = 75_000

export async function buildApp(deps: Deps, tracing?: Tracing): Promise<App> {
  const app = createFastify(deps)
  // Declared here so that every request object has one shape; the hooks below fill them.
  app.decorateRequest('caller', null as never)
  app.decorateRequest('sandbox', null as never)
  app.decorateRequest('idempotency', undefined)
  app.decorate('routeList', [])
  app.setValidatorCompiler(compileValidator)
  if (tracing) await app.register(tracing.plugin)

  app.addHook('onRequest', (request, reply, done) => {
    reply.header('X-Request-Id', request.id)
    done()
  })
  admitRequests(app, deps)
  acceptJsonBodies(app)
  honourIdempotencyKeys(app, deps)
  observeRequests(app, deps)
  answerErrors(app, deps)
  await describeApi(app, VERSION)
  app.addHook('onRoute', (route) => {
    if (!route.config?.access) throw new Error(`${route.method} ${route.url} does not say who may use it`)
    for (const method of [route.method].flat()) app.routeList.push({ method, url: route.url })
  })

  healthRoutes(app, deps)
  catalogRoutes(app, deps)
  userRoutes(app, deps)
  hostRoutes(app, deps)
  sandboxRoutes(app, deps)
  guestRoutes(app, deps)
  processRoutes(app, deps)
  shellRoutes(app, deps)
  accessTokenRoutes(app, deps)
  egressRoutes(app, deps)
  networkRoutes(app, deps)
  bandwidthRoutes(app, deps)
  diskRoutes(app, deps)
  mcpRoutes(app, deps, VERSION)
  docsRoutes(app)

  const upgrades = routeUpgrades(app.server, (request, response) => app.routing(request, response))
  app.addHook('preClose', async () => upgrades.close())
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
    http: { shouldUpgradeCallback: shouldUpgrade, keepAliveTimeout: KEEP_ALIVE_MS, requestTimeout: 0 },
    // While it closes it goes on serving what still arrives on open connections.
    return503OnClosing: false,
    forceCloseConnections: 'idle',
    frameworkErrors: (error, request, reply) => answerError(deps, error, request, reply),
    clientErrorHandler: (error, socket) => answerGarbage(deps, error, socket),
  }).withTypeProvider<TypeBoxTypeProvider>()
}

function answerErrors(app: FastifyInstance, deps: Deps): void {
  app.setErrorHandler((error, request, reply) => answerError(deps, error, request, reply))
  app.setNotFoundHandler((request, reply) => answerError(deps, notFound('route'), request, reply))
}

function answerError(deps: Deps, error: unknown, request: FastifyRequest, reply: FastifyReply) {
  const { status, body, retryAfterSeconds, unexpected } = renderError(error)
  if (unexpected)
    deps.log.error({ err: error, request: request.id, route: request.routeOptions?.url }, 'unexpected error')
  if (retryAfterSeconds !== undefined) reply.header('Retry-After', retryAfterSeconds)
  // Fastify would hang up, and a client that is still sending sees its connection break instead of the answer. Node
  // reads the rest away, for as long as it keeps an idle connection.
  if (isBodyTooLarge(error)) reply.header('Connection', 'keep-alive')
  return reply.header('X-Request-Id', request.id).code(status).type('application/json').send(body)
}

/** Bytes that are not HTTP never become a request; the answer is written by hand. */
function answerGarbage(deps: Deps, error: Error & { code?: string }, socket: Socket): void {
  deps.metrics.refused.inc({ reason: 'malformed' })
  if (error.code === 'ECONNRESET' || !socket.writable) return void socket.destroy()
  const text = error.code === 'HPE_HEADER_OVERFLOW' ? 'the request head is too large' : 'this is not an HTTP request'
  const body = JSON.stringify({ status: 'fail', data: { message: text, code: 'validation_failed' } })
  socket.end(
    `HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nX-Request-Id: ${ulid()}\r\n` +
      `Content-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
  )
}

/** Ours are counted: the process is known by its random part, and making one up for each request costs more. */
const PROCESS = ulid()
let requests = 0

/** A caller's own id is kept if it is harmless in a log and a header. */
function requestId(request: IncomingMessage): string {
  const given = request.headers['x-request-id']
  if (typeof given === 'string' && /^[\w.:-]{1,128}$/.test(given)) return given
  requests++
  return `${PROCESS}-${requests.toString(36)}`
}
