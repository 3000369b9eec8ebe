/**
 * Connections of sandboxes whose rules name hosts: to port 80 and 443 of whatever address, turned here by the host's
 * table. Each must say which host it wants (HTTP: Host, TLS: server name); the proxy asks for the address itself and
 * carries the bytes, without changing one. It cannot see what goes on inside TLS.
 *
 * A connection ends when its sandbox's rules no longer allow its name, and with its sandbox.
 */
import { createServer, type Socket } from 'node:net'
import type { EgressRefusal } from '@warren/protocol'
import { EGRESS_REFUSALS } from '@warren/protocol'
import { ClientHelloReader } from './client-hello.ts'
import { reach } from './connect-by-name.ts'
import type { Lookup } from './lookup.ts'
import { carry, carryRequests } from './relay.ts'
import { RequestReader } from './request-reader.ts'
import type { Connection, Known } from './sandbox.ts'
import { Shares } from './source-limiter.ts'

export type ProxyKind = 'http' | 'tls'
export type ProxyDeps = { find: (ip: string) => Known | undefined; lookup: Lookup; connections: Shares }
export type Proxy = { close: () => Promise<void> }

/** To say which host it wants. */
const NAME_LIMIT_MS = 5_000
/** For the guest to take our last words. */
const LINGER_MS = 1_000
const PORT = { http: 80, tls: 443 } as const

/** Each costs two descriptors, of which a process may have as few as 20000. */
export const proxyShares = (): Shares => new Shares({ perSource: 512, total: 6_000 })

export async function startProxy(deps: ProxyDeps, kind: ProxyKind, address: string, port: number): Promise<Proxy> {
  const open = new Set<Socket>()
  const server = createServer({ allowHalfOpen: true, noDelay: true, keepAlive: true }, (guest) => {
    open.add(guest)
    guest.once('close', () => open.delete(guest))
    guest.on('error', () => {}) // its close follows
    accept(deps, kind, guest)
  })
  const { promise, resolve, reject } = Promise.withResolvers<void>()
  server.once('error', reject)
  server.listen(port, address, resolve)
  await promise
  server.off('error', reject)
  const close = () =>
    new Promise<void>((resolve) => {
      server.close(() => resolve())
      for (const guest of open) guest.destroy()
    })
  return { close }
}

function accept(deps: ProxyDeps, kind: ProxyKind, guest: Socket): void {
  const source = guest.remoteAddress ?? ''
  const known = deps.find(source)
  // Nobody we know: the kernel lets no such packet here, except in the moment in which its sandbox ends.
  if (known === undefined) return void guest.destroy()
  const release = deps.connections.take(source)
  if (release === undefined) {
    known.refuse({ via: kind, destination: '', protocol: 'tcp', port: PORT[kind] }, 'too_many')
    return void guest.destroy()
  }
  const connection: Connection = { name: undefined, port: PORT[kind], close: () => guest.destroy() }
  known.connections.add(connection)
  guest.once('close', () => {
    known.connections.delete(connection)
    release()
  })
  void serve(deps, kind, guest, known, connection)
}

async function serve(
  deps: ProxyDeps,
  kind: ProxyKind,
  guest: Socket,
  known: Known,
  connection: Connection,
): Promise<void> {
  const refuse = (refusal: EgressRefusal) => {
    known.refuse({ via: kind, destination: connection.name ?? '', protocol: 'tcp', port: connection.port }, refusal)
    sayRefused(kind, guest, refusal)
  }
  const requests = new RequestReader(connection.port)
  const asked = await (kind === 'tls' ? readHello(guest) : readRequest(guest, requests))
  if (guest.destroyed) return
  connection.name = asked.name
  if ('refusal' in asked) return refuse(asked.refusal)

  const reached = await reach(deps.lookup, known, asked.name, connection.port)
  if (guest.destroyed) return void ('socket' in reached && reached.socket.destroy())
  if ('refusal' in reached) return refuse(reached.refusal)
  if ('unreachable' in reached) return sayUnreachable(kind, guest)
  const { socket } = reached
  connection.close = () => {
    guest.destroy()
    socket.destroy()
  }
  known.pass(asked.name, connection.port)
  for (const bytes of asked.first) socket.write(bytes)
  if (kind === 'tls') carry(guest, socket)
  else {
    carryRequests(guest, socket, requests, (refusal) => {
      known.refuse({ via: kind, destination: asked.name, protocol: 'tcp', port: connection.port }, refusal)
      connection.close()
    })
  }
}

type Asked = { name: string; first: Buffer[] } | { refusal: EgressRefusal; name?: string }

function readHello(guest: Socket): Promise<Asked> {
  const reader = new ClientHelloReader()
  const first: Buffer[] = []
  return readUntil(guest, (chunk) => {
    first.push(chunk)
    const outcome = reader.push(chunk)
    return outcome === undefined || 'refusal' in outcome ? outcome : { name: outcome.name, first }
  })
}

/** The body, as far as it came along, is among the first bytes. */
function readRequest(guest: Socket, requests: RequestReader): Promise<Asked> {
  return readUntil(guest, (chunk) => {
    const { forward, refusal } = requests.push(chunk)
    if (refusal !== undefined) return { refusal, ...(requests.host === undefined ? {} : { name: requests.host }) }
    return requests.host === undefined ? undefined : { name: requests.host, first: forward }
  })
}

/** Chunk by chunk, until `take` has seen enough; the rest stays in the socket. */
function readUntil(guest: Socket, take: (chunk: Buffer) => Asked | undefined): Promise<Asked> {
  const { promise, resolve } = Promise.withResolvers<Asked>()
  const onData = (chunk: Buffer) => {
    const asked = take(chunk)
    if (asked === undefined) return
    guest.pause()
    resolve(asked)
  }
  const giveUp = () => resolve({ refusal: 'no_server_name' })
  const timer = setTimeout(giveUp, NAME_LIMIT_MS)
  guest.on('data', onData)
  guest.once('end', giveUp)
  guest.once('close', giveUp)
  return promise.finally(() => {
    clearTimeout(timer)
    guest.off('data', onData).off('end', giveUp).off('close', giveUp)
  })
}

function sayRefused(kind: ProxyKind, guest: Socket, refusal: EgressRefusal): void {
  const text = `egress refused: ${EGRESS_REFUSALS[refusal]}\n`
  sayLast(guest, kind === 'http' ? renderAnswer('403 Forbidden', text) : UNRECOGNIZED_NAME)
}

function sayUnreachable(kind: ProxyKind, guest: Socket): void {
  if (kind === 'tls') return void guest.resetAndDestroy()
  sayLast(guest, renderAnswer('502 Bad Gateway', 'the host does not answer\n'))
}

/** A fatal alert (RFC 8446 6.2): clients report it as "unrecognized name". */
const UNRECOGNIZED_NAME = Buffer.from([21, 3, 3, 0, 2, 2, 112])

const renderAnswer = (status: string, text: string): Buffer =>
  Buffer.from(
    `HTTP/1.1 ${status}\r\ncontent-type: text/plain\r\ncontent-length: ${text.length}\r\nconnection: close\r\n\r\n${text}`,
  )

/** What the guest still sends is read and forgotten: closing on unread bytes would take our words back. */
function sayLast(guest: Socket, bytes: Buffer): void {
  guest.resume()
  guest.end(bytes)
  const timer = setTimeout(() => guest.destroy(), LINGER_MS)
  guest.once('end', () => guest.destroySoon())
  guest.once('close', () => clearTimeout(timer))
}
