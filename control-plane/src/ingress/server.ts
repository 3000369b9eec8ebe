/**
 * The listener of the ingress: HTTP and HTTPS on one port, distinguished by the first byte of a connection (a TLS
 * handshake record begins with 22). Only HTTP/1.1 is offered: with HTTP/2, a browser could use one connection for several
 * sandboxes.
 */
import { once } from 'node:events'
import { createServer as createHttp, type IncomingMessage, type Server, type ServerOptions } from 'node:http'
import { createServer as createHttps, type Server as HttpsServer } from 'node:https'
import net, { type AddressInfo, type Socket } from 'node:net'
import type { SecureContext } from 'node:tls'
import type { Deps } from '../deps.ts'
import { clientNetwork } from '../http/client-network.ts'
import { RateLimiter } from '../http/rate-limit.ts'
import { createTrustedProxyCheck } from '../http/trusted-proxies.ts'
import type { Certificates, KeyAndCertificate } from './certificates.ts'
import { ClientConnections, INGRESS_LIMITS, type IngressLimits } from './client-connections.ts'
import { IngressError } from './error.ts'
import { clientAddress } from './headers.ts'
import { parseHostname } from './hostname.ts'
import { type Ingress, proxyRequest, proxyUpgrade } from './proxy.ts'
import { createIngressStreams } from './streams.ts'
import { isReachable } from './upstream.ts'
import { UpstreamAgent } from './upstream-agent.ts'

const TLS_HANDSHAKE = 22
/** TCP keep-alive finds clients that vanished, even behind a WebSocket that is silent for hours. */
const TCP_KEEP_ALIVE_MS = 60_000

export type IngressServer = { port: number; close(): Promise<void> }

export async function startIngressServer(
  deps: Deps,
  certificates: Certificates,
  limits: IngressLimits = INGRESS_LIMITS,
): Promise<IngressServer> {
  const { ingress: metrics } = deps.metrics
  const streams = createIngressStreams(deps)
  const upstreams = new UpstreamAgent(deps, streams)
  const isTrustedProxy = createTrustedProxyCheck(deps.config.trustedProxies)
  const clients = new ClientConnections(metrics, limits)
  const checkRateLimit = createRateLimitCheck(deps, isTrustedProxy)
  const ingress: Ingress = { deps, streams, upstreams, isTrustedProxy, checkRateLimit }
  const { plain, secure } = createHttpServers(deps, certificates, limits)
  const setDefaultCertificate = createDefaultCertificate(secure, certificates)
  clients.watch(plain, 'connection')
  clients.watch(secure, 'secureConnection')
  serve(ingress, clients, plain, false)
  serve(ingress, clients, secure, true)

  const updateMetrics = () => {
    clients.countBytes()
    metrics.connections.set({ side: 'client' }, clients.count)
    metrics.connections.set({ side: 'sandbox' }, streams.count)
    metrics.connections.set({ side: 'kept' }, upstreams.idleCount)
  }
  metrics.sources.add(updateMetrics)

  const sockets = new Set<Socket>()
  // Half open, because an upgraded connection may end in one direction and continue in the other.
  const settings = { noDelay: true, allowHalfOpen: true, keepAlive: true, keepAliveInitialDelay: TCP_KEEP_ALIVE_MS }
  const admit = (socket: Socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
    socket.on('error', () => socket.destroy())
    const address = socket.remoteAddress ?? ''
    if (!isTrustedProxy(address.replace(/^::ffff:/, '')) && !clients.admit(socket, clientNetwork(address))) {
      return void socket.destroy()
    }
    handOverAtFirstByte(socket, limits.firstByteMs, (first) => {
      if (first !== TLS_HANDSHAKE) return plain
      setDefaultCertificate(socket)
      return secure
    })
  }
  const listeners = await openListeners(deps, () => net.createServer(settings, admit))
  return {
    port: (listeners[0].address() as AddressInfo).port,
    async close() {
      metrics.sources.delete(updateMetrics)
      streams.close()
      upstreams.destroy()
      certificates.close()
      const closed = listeners.map((listener) => new Promise((resolve) => listener.close(resolve)))
      for (const socket of sockets) socket.destroy()
      await Promise.all(closed)
    },
  }
}

/**
 * Names below `localhost` resolve to both loopback addresses, ::1 first, so both are served if the ingress is for this
 * machine only. A machine without IPv6 has one of them, and another program may have the port at ::1.
 */
async function openListeners(
  { config }: Deps,
  createListener: () => net.Server,
): Promise<[net.Server, ...net.Server[]]> {
  const { ingressHost, host: apiHost, ingressPort } = config
  const host = ingressHost || apiHost
  const listener = await listen(createListener(), ingressPort, host)
  if (host !== '127.0.0.1') return [listener]
  const { port } = listener.address() as AddressInfo
  const second = await listen(createListener(), port, '::1').catch(() => undefined)
  return second === undefined ? [listener] : [listener, second]
}

async function listen(listener: net.Server, port: number, host: string): Promise<net.Server> {
  listener.listen(port, host)
  await once(listener, 'listening')
  return listener
}

/** Two servers that do not listen: they get their connections from the TCP listener. */
function createHttpServers(deps: Deps, certificates: Certificates, limits: IngressLimits) {
  const options: ServerOptions = {
    requestTimeout: 0,
    keepAliveTimeout: limits.keepAliveMs,
    // The JDK's client sends `Upgrade: h2c` with every request; such a request is an ordinary one.
    shouldUpgradeCallback: (request: IncomingMessage) => !/^\s*h2c\s*$/i.test(request.headers.upgrade ?? ''),
  }
  const secure = createHttps({
    ...options,
    ALPNProtocols: ['http/1.1'],
    handshakeTimeout: limits.handshakeMs,
    SNICallback: (name, done) => {
      findContext(deps, certificates, name).then((context) => done(null, context), done)
    },
  })
  return { plain: createHttp(options), secure }
}

/** Names of another form get the certificate of the domain: what the client wants is not here. */
async function findContext(deps: Deps, certificates: Certificates, serverName: string): Promise<SecureContext> {
  const { domain } = deps.ingressAddress
  const name = serverName.toLowerCase()
  const target = parseHostname(name, domain)
  if (target === undefined) return certificates.contextFor(domain, undefined)
  if (certificates.has(name)) return certificates.contextFor(name, target.id)
  // Without the database no sandbox is known. The request, which needs it too, then gets a 503.
  const found = await deps.loaders.sandboxVersion(target.id).catch(() => undefined)
  return certificates.contextFor(name, found && isReachable(found.row) ? target.id : undefined)
}

/** Before a TLS connection begins: the server's own certificate is used when the client sends no server name. */
function createDefaultCertificate(server: HttpsServer, certificates: Certificates): (socket: Socket) => void {
  let current: KeyAndCertificate | undefined
  return (socket) => {
    const wanted = certificates.defaultFor((socket.localAddress ?? '').replace(/^::ffff:/, ''))
    if (wanted === current) return
    server.setSecureContext(wanted)
    current = wanted
  }
}

/** Waits for the first byte, puts it back, and gives the connection to the server that `choose` names. */
function handOverAtFirstByte(socket: Socket, timeoutMs: number, choose: (first: number | undefined) => Server): void {
  const close = () => socket.destroy()
  socket.setTimeout(timeoutMs, close)
  socket.once('end', close)
  socket.once('data', (first: Buffer) => {
    socket.pause()
    socket.setTimeout(0)
    socket.off('timeout', close).off('end', close)
    socket.unshift(first)
    choose(first[0]).emit('connection', socket)
    process.nextTick(() => socket.resume())
  })
}

/** Counts by client address over all sandboxes, so that trying out host names is limited too. */
function createRateLimitCheck(deps: Deps, isTrustedProxy: (ip: string) => boolean): (request: IncomingMessage) => void {
  const limiter = new RateLimiter(deps.config.ingressRateLimitPerMinute)
  return (request) => {
    const retryAfterSeconds = limiter.take(clientNetwork(clientAddress(request, isTrustedProxy)), Date.now())
    if (retryAfterSeconds !== undefined) throw new IngressError(429, 'Too many requests.', { retryAfterSeconds })
  }
}

function serve(ingress: Ingress, clients: ClientConnections, server: Server, secure: boolean): void {
  server.on('request', (request, response) => void proxyRequest(ingress, request, response, secure))
  server.on('upgrade', (request, socket, head) => void proxyUpgrade(ingress, request, socket, head, secure))
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    // While a response is in progress, an error response would be taken for a part of it.
    if (!error.code?.startsWith('HPE_') || !socket.writable || clients.isBusy(socket as Socket)) {
      return void socket.destroy()
    }
    const ingressError =
      error.code === 'HPE_HEADER_OVERFLOW'
        ? new IngressError(431, 'The request head is too large.')
        : new IngressError(400, 'This is not a valid HTTP request.')
    ingress.deps.metrics.ingress.requests.inc({ outcome: ingressError.outcome })
    socket.end(ingressError.render(), () => socket.destroy())
  })
}
