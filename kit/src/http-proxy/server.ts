/**
 * The listener of the proxy: HTTP and HTTPS on one port, distinguished by the first byte of a connection (a TLS
 * handshake record begins with 22). Only HTTP/1.1 is offered: with HTTP/2, a browser could use one connection for several
 * hosts.
 */
import { once } from 'node:events'
import { createServer as createHttp, type IncomingMessage, type Server, type ServerOptions } from 'node:http'
import { createServer as createHttps, type Server as HttpsServer } from 'node:https'
import net, { type AddressInfo, type Socket } from 'node:net'
import type { SecureContext } from 'node:tls'
import { clientNetwork } from '../client-network.ts'
import type { Log } from '../log.ts'
import { RateLimiter } from '../rate-limit.ts'
import { createTrustedProxyCheck } from '../trusted-proxies.ts'
import type { Backend, ProxyObserver } from './backend.ts'
import type { Certificates, KeyAndCertificate } from './certificates.ts'
import { ClientConnections, PROXY_LIMITS, type ProxyLimits } from './client-connections.ts'
import { ProxyError } from './error.ts'
import { clientAddress } from './headers.ts'
import { type HttpProxy, proxyRequest, proxyUpgrade } from './proxy.ts'
import { UpstreamAgent } from './upstream-agent.ts'

const TLS_HANDSHAKE = 22
/** TCP keep-alive finds clients that vanished, even behind a WebSocket that is silent for hours. */
const TCP_KEEP_ALIVE_MS = 60_000

export type ProxyServer = {
  port: number
  /** Open connections from clients, and idle ones to the backend. */
  counts(): { clients: number; idle: number }
  /** Reports bytes that were transferred since the last call. */
  countBytes(): void
  close(): Promise<void>
}

export type ProxySettings<Target, Upstream> = {
  backend: Backend<Target, Upstream>
  observer: ProxyObserver
  log: Pick<Log, 'error'>
  certificates: Certificates
  /** The certificate of this name is used where no other applies. */
  domain: string
  host: string
  port: number
  trustedProxies: readonly string[]
  /** Requests from one address. 0 is no limit. */
  rateLimitPerMinute: number
  limits?: ProxyLimits | undefined
}

export async function startProxyServer<Target, Upstream>(
  settings: ProxySettings<Target, Upstream>,
): Promise<ProxyServer> {
  const { backend, observer, log, certificates, limits = PROXY_LIMITS } = settings
  const upstreams = new UpstreamAgent(backend)
  const isTrustedProxy = createTrustedProxyCheck(settings.trustedProxies)
  const clients = new ClientConnections(observer, limits)
  const checkRateLimit = createRateLimitCheck(settings.rateLimitPerMinute, isTrustedProxy)
  const proxy: HttpProxy<Target, Upstream> = { backend, observer, log, upstreams, isTrustedProxy, checkRateLimit }
  const { plain, secure } = createHttpServers(settings, limits)
  const setDefaultCertificate = createDefaultCertificate(secure, certificates)
  clients.watch(plain, 'connection')
  clients.watch(secure, 'secureConnection')
  serve(proxy, clients, plain, false)
  serve(proxy, clients, secure, true)

  const sockets = new Set<Socket>()
  // Half open, because an upgraded connection may end in one direction and continue in the other.
  const socketOptions = {
    noDelay: true,
    allowHalfOpen: true,
    keepAlive: true,
    keepAliveInitialDelay: TCP_KEEP_ALIVE_MS,
  }
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
  const listeners = await openListeners(settings, () => net.createServer(socketOptions, admit))
  return {
    port: (listeners[0].address() as AddressInfo).port,
    counts: () => ({ clients: clients.count, idle: upstreams.idleCount }),
    countBytes: () => clients.countBytes(),
    async close() {
      upstreams.destroy()
      certificates.close()
      const closed = listeners.map((listener) => new Promise((resolve) => listener.close(resolve)))
      for (const socket of sockets) socket.destroy()
      await Promise.all(closed)
    },
  }
}

/**
 * Names below `localhost` resolve to both loopback addresses, ::1 first, so both are served if the proxy is for this
 * machine only. A machine without IPv6 has one of them, and another program may have the port at ::1.
 */
async function openListeners(
  { host, port: wantedPort }: { host: string; port: number },
  createListener: () => net.Server,
): Promise<[net.Server, ...net.Server[]]> {
  const listener = await listen(createListener(), wantedPort, host)
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
function createHttpServers<Target, Upstream>(settings: ProxySettings<Target, Upstream>, limits: ProxyLimits) {
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
      findContext(settings, name).then((context) => done(null, context), done)
    },
  })
  return { plain: createHttp(options), secure }
}

/** Names of another form get the certificate of the domain: what the client wants is not here. */
async function findContext<Target, Upstream>(
  { backend, certificates, domain }: ProxySettings<Target, Upstream>,
  serverName: string,
): Promise<SecureContext> {
  const name = serverName.toLowerCase()
  const target = backend.parseHost(name)
  if (target === undefined) return certificates.contextFor(domain, undefined)
  if (certificates.has(name)) return certificates.contextFor(name, backend.keyOf(target))
  // If it cannot be found out now, neither can the request be served, which then gets a 503.
  const owner = await backend.findOwner(target).catch(() => undefined)
  return certificates.contextFor(name, owner)
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

/** Counts by client address over all hosts, so that trying out host names is limited too. */
function createRateLimitCheck(
  limitPerMinute: number,
  isTrustedProxy: (ip: string) => boolean,
): (request: IncomingMessage) => void {
  const limiter = new RateLimiter(limitPerMinute)
  return (request) => {
    const retryAfterSeconds = limiter.take(clientNetwork(clientAddress(request, isTrustedProxy)), Date.now())
    if (retryAfterSeconds !== undefined) throw new ProxyError(429, 'Too many requests.', { retryAfterSeconds })
  }
}

function serve<Target, Upstream>(
  proxy: HttpProxy<Target, Upstream>,
  clients: ClientConnections,
  server: Server,
  secure: boolean,
): void {
  server.on('request', (request, response) => void proxyRequest(proxy, request, response, secure))
  server.on('upgrade', (request, socket, head) => void proxyUpgrade(proxy, request, socket, head, secure))
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    // While a response is in progress, an error response would be taken for a part of it.
    if (!error.code?.startsWith('HPE_') || !socket.writable || clients.isBusy(socket as Socket)) {
      return void socket.destroy()
    }
    const known =
      error.code === 'HPE_HEADER_OVERFLOW'
        ? new ProxyError(431, 'The request head is too large.')
        : new ProxyError(400, 'This is not a valid HTTP request.')
    proxy.observer.countRequest(known.outcome)
    socket.end(known.render(), () => socket.destroy())
  })
}
