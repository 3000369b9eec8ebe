/** The Fastify instance behind every route: its settings, its types, and how errors become replies. */
import type { Socket } from 'node:net'
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import { isLoopback } from '@warren/kit/shared-settings'
import { ulid } from '@warren/protocol'
import Fastify, { type FastifyReply, type FastifyRequest } from 'fastify'
import type { Deps } from '../deps.ts'
import { badRequest, isBodyTooLarge, notFound, renderError } from './errors.ts'
import { compileValidator } from './validation.ts'

export type App = ReturnType<typeof createFastify>

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Whether requests must be signed by a wallet. The process does not start with a route that does not say. */
    signature?: 'required' | 'none'
  }
  interface FastifyRequest {
    /** The verified wallet, in lower case; an empty string on public routes. */
    wallet: string
  }
}

/** Longer than the idle timeout of common load balancers, so that they close idle connections first. */
const KEEP_ALIVE_MS = 75_000
/** For a whole request. A body of 50 MB takes 80 s at 5 Mbit/s; slower clients would hold a place for too long. */
const REQUEST_LIMIT_MS = 120_000
/** For routes that do not read their own body: none of them takes one. */
const BODY_MAX_BYTES = 16 * 1024

export function createServer(deps: Deps): App {
  const app = createFastify(deps)
  app.decorateRequest('wallet', '')
  app.setValidatorCompiler(compileValidator)
  app.setErrorHandler((error, request, reply) => replyWithError(deps, error, request, reply))
  app.setNotFoundHandler((request, reply) => replyWithError(deps, notFound(), request, reply))
  app.addHook('onRequest', (request, reply, done) => {
    reply.header('X-Request-Id', request.id)
    // Paid answers and errors must not be cached.
    if (isAgentPath(request)) reply.header('Cache-Control', 'no-store')
    done()
  })
  if (deps.config.development) app.addHook('onRequest', async (request) => checkLocalHost(request))
  app.addHook('onResponse', (request, reply, done) => {
    // Paths of unknown routes are chosen by clients, and their number is unbounded.
    const route = request.routeOptions.url ?? 'none'
    const labels = { method: request.method, route, status: reply.statusCode }
    deps.metrics.requests.observe(labels, reply.elapsedTime / 1000)
    done()
  })
  app.addHook('onRoute', (route) => {
    if (!route.config?.signature)
      throw new Error(`route ${route.method} ${route.url} does not declare config.signature`)
  })
  return app
}

/**
 * A page of another site can make a browser send requests to this machine under its own name (DNS rebinding). With a
 * development chain it could also give itself money, so only names of this machine are answered.
 */
function checkLocalHost({ hostname }: FastifyRequest): void {
  if (isLoopback(hostname.replace(/^\[(.*)\]$/, '$1'))) return
  throw badRequest('Host', 'must be a name of this machine, because this gateway has a development chain')
}

/** By the route that was found, whatever its spelling in the URL: `/%61gent/chains` is `/agent/chains`. */
export const isAgentPath = (request: FastifyRequest): boolean =>
  request.routeOptions?.url?.startsWith('/agent/') === true || /^\/+agent(?:[/?#]|$)/i.test(request.url)

function createFastify(deps: Deps) {
  const { trustedProxies } = deps.config
  return Fastify({
    logger: false,
    trustProxy: trustedProxies.length > 0 ? trustedProxies : false,
    bodyLimit: BODY_MAX_BYTES,
    genReqId: () => ulid(),
    routerOptions: { ignoreTrailingSlash: true, maxParamLength: 256 },
    http: { keepAliveTimeout: KEEP_ALIVE_MS, requestTimeout: REQUEST_LIMIT_MS },
    return503OnClosing: false,
    forceCloseConnections: 'idle',
    frameworkErrors: (error, request, reply) => replyWithError(deps, error, request, reply),
    clientErrorHandler: rejectMalformed,
  }).withTypeProvider<TypeBoxTypeProvider>()
}

export function replyWithError(deps: Deps, error: unknown, request: FastifyRequest, reply: FastifyReply) {
  const { status, body, headers, unexpected } = renderError(error)
  if (unexpected) {
    deps.log.error({ err: error, request: request.id, route: request.routeOptions?.url }, 'unexpected error')
  }
  // Also here: a path that cannot be decoded gets no further, and passes no hook.
  if (isAgentPath(request)) reply.header('Cache-Control', 'no-store')
  // Fastify would close the connection, and a client that is still sending would see a reset instead of this reply.
  if (isBodyTooLarge(error)) reply.header('Connection', 'keep-alive')
  return reply.headers(headers).code(status).type('application/json').send(body)
}

/** Bytes that are not HTTP, and requests that arrive too slowly, never reach a route: the reply goes to the socket. */
function rejectMalformed(error: Error & { code?: string }, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !socket.writable) return void socket.destroy()
  const isSlow = error.code === 'ERR_HTTP_REQUEST_TIMEOUT'
  const body = JSON.stringify({ error: isSlow ? 'the request took too long to arrive' : 'this is not an HTTP request' })
  socket.end(
    'HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nCache-Control: no-store\r\n' +
      `Content-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
  )
}
