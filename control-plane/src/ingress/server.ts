/**
 * The door of the sandboxes: http and https on one port, told apart by the first byte (a TLS record begins with 22).
 * HTTP/1.1 only: a browser that is offered h2 could use one connection for several sandboxes.
 */
import { createServer as createHttp, type IncomingMessage, type Server, type ServerOptions } from 'node:http'
import { createServer as createHttps } from 'node:https'
import net, { type AddressInfo, type Socket } from 'node:net'
import type { Deps } from '../deps.ts'
import { RateLimiter } from '../http/rate-limit.ts'
import type { Certificates } from './certificates.ts'
import { ClientConnections, INGRESS_LIMITS, type IngressLimits } from './client-connections.ts'
import { IngressError } from './error.ts'
import { clientAddress, trustedBy } from './headers.ts'
import { parseHostname } from './hostname.ts'
import { type Ingress, proxyRequest, proxyUpgrade } from './proxy.ts'
import { createIngressStreams } from './streams.ts'
import { UpstreamAgent } from './upstream-agent.ts'

const TLS_HANDSHAKE = 22
/** A client that vanished without a word is found out, also behind a WebSocket that is silent for hours. */
const PROBE_AFTER_MS = 60_000

export type IngressServer = { port: number; close(): Promise<void> }

export async function startIngressServer(
  deps: Deps,
  certificates: Certificates,
  limits: IngressLimits = INGRESS_LIMITS,
): Promise<IngressServer> {
  const { ingress: metrics } = deps.metrics
  const streams = createIngressStreams(deps)
  const upstreams = new UpstreamAgent(deps, streams)
  const isTrusted = trustedBy(deps.config.trustedProxies)
  const clients = new ClientConnections(metrics, limits)
  const ingress: Ingress = { deps, streams, upstreams, isTrusted, admit: createAdmission(deps, isTrusted) }
  const { domain } = deps.ingressAddress
  const options: ServerOptions = {
    requestTimeout: 0,
    keepAliveTimeout: limits.keepAliveMs,
    // The JDK's client offers h2c with every request; it is an ordinary one.
    shouldUpgradeCallback: (request: IncomingMessage) => !/^\s*h2c\s*$/i.test(request.headers.upgrade ?? ''),
  }
  const plain = createHttp(options)
  const secure = createHttps({
    ...options,
    ALPNProtocols: ['http/1.1'],
    handshakeTimeout: limits.handshakeMs,
    SNICallback: (name, done) => {
      const known = parseHostname(name, domain) !== undefined
      done(null, certificates.contextFor(known ? name.toLowerCase() : domain))
    },
  })
  clients.watch(plain, 'connection')
  clients.watch(secure, 'secureConnection')
  serve(ingress, clients, plain, false)
  serve(ingress, clients, secure, true)

  const source = () => {
    clients.countBytes()
    metrics.connections.set({ side: 'client' }, clients.count)
    metrics.connections.set({ side: 'sandbox' }, streams.count)
    metrics.connections.set({ side: 'kept' }, upstreams.idleCount)
  }
  metrics.sources.add(source)

  const sockets = new Set<Socket>()
  // Half open, because an upgraded connection may end one way and go on the other; HTTP itself does not.
  const settings = { noDelay: true, allowHalfOpen: true, keepAlive: true, keepAliveInitialDelay: PROBE_AFTER_MS }
  const server = net.createServer(settings, (socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
    socket.on('error', () => socket.destroy())
    const address = socket.remoteAddress ?? ''
    if (!isTrusted(address.replace(/^::ffff:/, '')) && !clients.enter(socket, address)) return void socket.destroy()
    const leave = () => socket.destroy()
    socket.setTimeout(limits.firstByteMs, leave)
    socket.once('end', leave)
    socket.once('data', (first: Buffer) => {
      socket.pause()
      socket.setTimeout(0)
      socket.off('timeout', leave).off('end', leave)
      socket.unshift(first)
      const chosen = first[0] === TLS_HANDSHAKE ? secure : plain
      chosen.emit('connection', socket)
      process.nextTick(() => socket.resume())
    })
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(deps.config.ingressPort, deps.config.ingressHost || deps.config.host, resolve)
  })
  return {
    port: (server.address() as AddressInfo).port,
    async close() {
      metrics.sources.delete(source)
      streams.close()
      upstreams.destroy()
      certificates.close()
      const closed = new Promise((resolve) => server.close(resolve))
      for (const socket of sockets) socket.destroy()
      await closed
    },
  }
}

/** By address, and of all sandboxes together: who tries out names pays for each of them. */
function createAdmission(deps: Deps, isTrusted: (ip: string) => boolean): (request: IncomingMessage) => void {
  const limiter = new RateLimiter(deps.config.ingressRateLimitPerMinute)
  return (request) => {
    const retryAfterSeconds = limiter.take(clientAddress(request, isTrusted), Date.now())
    if (retryAfterSeconds !== undefined) throw new IngressError(429, 'Too many requests.', { retryAfterSeconds })
  }
}

function serve(ingress: Ingress, clients: ClientConnections, server: Server, secure: boolean): void {
  server.on('request', (request, response) => void proxyRequest(ingress, request, response, secure))
  server.on('upgrade', (request, socket, head) => void proxyUpgrade(ingress, request, socket, head, secure))
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    // After a request whose answer is not over yet, ours would be taken for a part of it.
    if (!error.code?.startsWith('HPE_') || !socket.writable || clients.isBusy(socket as Socket)) {
      return void socket.destroy()
    }
    const refusal =
      error.code === 'HPE_HEADER_OVERFLOW'
        ? new IngressError(431, 'The head of the request is too large.')
        : new IngressError(400, 'This is not HTTP.')
    ingress.deps.metrics.ingress.requests.inc({ outcome: refusal.outcome })
    socket.end(refusal.render(), () => socket.destroy())
  })
}
