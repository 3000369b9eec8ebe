/**
 * The door of the sandboxes: http and https on one port, told apart by the first byte (a TLS record begins with 22).
 * HTTP/1.1 only: a browser that is offered h2 could use one connection for several sandboxes.
 */
import { createServer as createHttp, type IncomingMessage, type Server, type ServerOptions } from 'node:http'
import { createServer as createHttps } from 'node:https'
import net, { type AddressInfo, type Socket } from 'node:net'
import type { Deps } from '../deps.ts'
import type { Certificates } from './certificates.ts'
import { trustedBy } from './headers.ts'
import { type Ingress, proxyRequest, proxyUpgrade } from './proxy.ts'
import { createIngressStreams } from './streams.ts'
import { domainName, parseTarget } from './target.ts'

const TLS_HANDSHAKE = 22
/** A client that says nothing is not kept. */
const FIRST_BYTE_MS = 10_000
const KEEP_ALIVE_MS = 75_000

const OPTIONS: ServerOptions = {
  requestTimeout: 0,
  keepAliveTimeout: KEEP_ALIVE_MS,
  // The JDK's client offers h2c with every request; it is an ordinary one.
  shouldUpgradeCallback: (request: IncomingMessage) => !/^\s*h2c\s*$/i.test(request.headers.upgrade ?? ''),
}

export type IngressServer = { port: number; close(): Promise<void> }

export async function startIngress(deps: Deps, certificates: Certificates): Promise<IngressServer> {
  const streams = createIngressStreams(deps)
  const ingress: Ingress = { deps, streams, isTrusted: trustedBy(deps.config.trustedProxies) }
  const domain = () => domainName(deps.config.ingressDomain)
  const plain = createHttp(OPTIONS)
  const secure = createHttps({
    ...OPTIONS,
    ALPNProtocols: ['http/1.1'],
    SNICallback: (name, done) => {
      const known = parseTarget(name, domain()) !== undefined
      done(null, certificates.contextFor(known ? name.toLowerCase() : domain()))
    },
  })
  serve(ingress, plain, false)
  serve(ingress, secure, true)

  const sockets = new Set<Socket>()
  const server = net.createServer({ noDelay: true }, (socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
    socket.on('error', () => socket.destroy())
    socket.setTimeout(FIRST_BYTE_MS, () => socket.destroy())
    socket.once('data', (first: Buffer) => {
      socket.pause()
      socket.setTimeout(0)
      socket.removeAllListeners('timeout')
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
      streams.close()
      certificates.close()
      const closed = new Promise((resolve) => server.close(resolve))
      for (const socket of sockets) socket.destroy()
      await closed
    },
  }
}

function serve(ingress: Ingress, server: Server, secure: boolean): void {
  server.on('request', (request, response) => void proxyRequest(ingress, request, response, secure))
  server.on('upgrade', (request, socket, head) => void proxyUpgrade(ingress, request, socket, head, secure))
  server.on('clientError', (_error, socket) => void socket.destroy())
}
