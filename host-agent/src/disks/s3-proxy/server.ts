/**
 * The listener of the S3 proxy. Only addresses of sandboxes with a mount get a connection, except at first: after a restart of the
 * host agent, mounts arrive one after the other, and a guest whose mount has not arrived must be answered that it is unknown, upon
 * which it tries again.
 */
import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { type Deadlines, LIMITS } from './limits.ts'
import { guestAddress, type ServeDeps, serve } from './serve.ts'

const HEAD_MAX_BYTES = 16 * 1024
const TCP_KEEP_ALIVE_MS = 30_000
/** How often Node looks for heads that have not arrived in time. */
const CHECKS_PER_LIMIT = 4

export type Listener = {
  /** Returns the port. */
  listen(): Promise<number>
  /** Closes the connections of sandboxes that have no mount any more. */
  closeStrangers(): void
}

export function openListener(deps: ServeDeps, address: string, port: number): Listener {
  const sockets = new Set<Socket>()
  const startedAt = performance.now()
  const isKnown = (ip: string) =>
    deps.mounts.hasSandbox(ip) || performance.now() - startedAt < deps.deadlines.recoveryMs
  const server = createHttpServer(deps.deadlines)
  server.on('connection', (socket: Socket) => {
    if (!admit(deps, socket, isKnown)) return
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
    deps.counts.addConnection(socket)
  })
  server.on('request', (request, response) => serve(deps, request, response, false))
  server.on('checkContinue', (request, response) => serve(deps, request, response, true))
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => refuseConnection(error, socket as Socket))
  // CONNECT and protocol upgrades have no meaning here.
  server.on('connect', (_request, socket) => socket.destroy())
  server.on('upgrade', (_request, socket) => socket.destroy())
  return {
    async listen() {
      server.listen({ host: address, port, backlog: LIMITS.connections })
      await once(server, 'listening')
      return (server.address() as AddressInfo).port
    },
    closeStrangers() {
      for (const socket of sockets) if (!deps.mounts.hasSandbox(guestAddress({ socket }))) socket.destroy()
    },
  }
}

function createHttpServer({ headMs, idleMs }: Deadlines): Server {
  const server = createServer({
    maxHeaderSize: HEAD_MAX_BYTES,
    insecureHTTPParser: false,
    headersTimeout: headMs,
    // A body may take hours as long as it makes progress (progress.ts).
    requestTimeout: 0,
    connectionsCheckingInterval: Math.ceil(headMs / CHECKS_PER_LIMIT),
    keepAliveTimeout: idleMs,
    keepAlive: true,
    keepAliveInitialDelay: TCP_KEEP_ALIVE_MS,
    noDelay: true,
  })
  // Repeated headers are looked for in all of them; the size limits how many there are.
  server.maxHeadersCount = 0
  return server
}

/** Of what Node's parser refuses. If an answer may have begun on this connection, it is only closed. */
function refuseConnection({ code }: NodeJS.ErrnoException, socket: Socket): void {
  if (!socket.writable || socket.bytesWritten > 0) {
    socket.destroy()
    return
  }
  const [status, name] =
    code === 'ERR_HTTP_REQUEST_TIMEOUT'
      ? ['408 Request Timeout', 'RequestTimeout']
      : ['400 Bad Request', 'InvalidRequest']
  socket.end(`HTTP/1.1 ${status}\r\nConnection: close\r\nContent-Length: 0\r\nWarren-Error: ${name}\r\n\r\n`, () =>
    socket.destroy(),
  )
}

function admit({ occupancy }: ServeDeps, socket: Socket, isKnown: (ip: string) => boolean): boolean {
  const ip = guestAddress({ socket })
  const leave = isKnown(ip) ? occupancy.enterConnection(ip) : undefined
  socket.on('error', () => {}) // Followed by `close`.
  if (leave === undefined) socket.destroy()
  else socket.once('close', leave)
  return leave !== undefined
}
