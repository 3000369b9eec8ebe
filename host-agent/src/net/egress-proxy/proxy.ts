/**
 * Relays connections of sandboxes whose rules name hosts. The host's table redirects connections to ports 80 and 443 of
 * any address here. Each connection must name its host (HTTP: the Host header, TLS: the server name). The proxy resolves
 * the name itself and relays the bytes unchanged. It cannot see what happens inside TLS.
 *
 * A connection is closed when a new policy no longer allows its name, and when its sandbox ends.
 */
import { createServer, type Socket } from 'node:net'
import { EGRESS_REFUSALS, type EgressRefusal } from '@warren/protocol'
import { ClientHelloReader } from './client-hello.ts'
import { connectByName } from './connect-by-name.ts'
import { countConnection } from './counts.ts'
import type { Lookup } from './lookup.ts'
import { relay, relayRequests } from './relay.ts'
import { RequestReader } from './request-reader.ts'
import type { Connection, SandboxEgress } from './sandbox-egress.ts'
import { SourceLimiter } from './source-limiter.ts'

export type ProxyKind = 'http' | 'tls'
export type ProxyDeps = {
  findSandbox: (ip: string) => SandboxEgress | undefined
  lookup: Lookup
  limiter: SourceLimiter
}
export type Proxy = { close: () => Promise<void> }

/** Within this time a connection must name its host. */
const NAME_LIMIT_MS = 5_000
/** The time that a guest has to read the refusal before the connection is closed. */
const LINGER_MS = 1_000
const PORT = { http: 80, tls: 443 } as const

/** Each connection costs two descriptors, and the limit of a process can be as low as 20000. */
export const createConnectionLimiter = (): SourceLimiter => new SourceLimiter({ perSource: 512, total: 6_000 })

export async function startProxy(deps: ProxyDeps, kind: ProxyKind, address: string, port: number): Promise<Proxy> {
  const open = new Set<Socket>()
  const server = createServer({ allowHalfOpen: true, noDelay: true, keepAlive: true }, (guest) => {
    open.add(guest)
    guest.once('close', () => open.delete(guest))
    guest.once('close', countConnection(kind))
    guest.on('error', () => {}) // The close event follows.
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
  const sandbox = deps.findSandbox(source)
  // The kernel admits only packets of sandboxes, so this happens only while a sandbox ends.
  if (sandbox === undefined) return void guest.destroy()
  const release = deps.limiter.acquire(source)
  if (release === undefined) {
    sandbox.recordRefusal({ via: kind, destination: '', protocol: 'tcp', port: PORT[kind] }, 'too_many')
    return void guest.destroy()
  }
  const connection: Connection = { name: undefined, port: PORT[kind], close: () => guest.destroy() }
  sandbox.connections.add(connection)
  guest.once('close', () => {
    sandbox.connections.delete(connection)
    release()
  })
  void serve(deps, kind, guest, sandbox, connection)
}

async function serve(
  deps: ProxyDeps,
  kind: ProxyKind,
  guest: Socket,
  sandbox: SandboxEgress,
  connection: Connection,
): Promise<void> {
  const { port } = connection
  const recordRefusal = (refusal: EgressRefusal) =>
    sandbox.recordRefusal({ via: kind, destination: connection.name ?? '', protocol: 'tcp', port }, refusal)
  const refuse = (refusal: EgressRefusal) => {
    recordRefusal(refusal)
    sendRefusal(kind, guest, refusal)
  }
  const requests = new RequestReader(port)
  const target = await (kind === 'tls' ? readClientHello(guest) : readRequest(guest, requests))
  if (guest.destroyed) return
  connection.name = target.name
  if ('refusal' in target) return refuse(target.refusal)

  const result = await connectByName(deps.lookup, sandbox, target.name, port)
  if (guest.destroyed) return void ('socket' in result && result.socket.destroy())
  if ('refusal' in result) return refuse(result.refusal)
  if ('unreachable' in result) return sendUnreachable(kind, guest)
  const { socket } = result
  connection.close = () => {
    guest.destroy()
    socket.destroy()
  }
  sandbox.recordFlow(target.name, port)
  for (const bytes of target.received) socket.write(bytes)
  if (kind === 'tls') return relay(guest, socket)
  relayRequests(guest, socket, requests, (refusal) => {
    recordRefusal(refusal)
    connection.close()
  })
}

/** The host that the guest asked for, and the bytes that were received until it was known. */
type Target = { name: string; received: Buffer[] } | { refusal: EgressRefusal; name?: string }

function readClientHello(guest: Socket): Promise<Target> {
  const reader = new ClientHelloReader()
  const received: Buffer[] = []
  return readUntil(guest, (chunk) => {
    received.push(chunk)
    const outcome = reader.push(chunk)
    return outcome === undefined || 'refusal' in outcome ? outcome : { name: outcome.name, received }
  })
}

/** `received` includes the part of the body that came with the head. */
function readRequest(guest: Socket, requests: RequestReader): Promise<Target> {
  return readUntil(guest, (chunk) => {
    const { forward, refusal } = requests.push(chunk)
    if (refusal !== undefined) return { refusal, ...(requests.host === undefined ? {} : { name: requests.host }) }
    return requests.host === undefined ? undefined : { name: requests.host, received: forward }
  })
}

/** Reads chunks until `take` returns a result; later bytes stay in the socket. */
function readUntil(guest: Socket, take: (chunk: Buffer) => Target | undefined): Promise<Target> {
  const { promise, resolve } = Promise.withResolvers<Target>()
  const onData = (chunk: Buffer) => {
    const target = take(chunk)
    if (target === undefined) return
    guest.pause()
    resolve(target)
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

function sendRefusal(kind: ProxyKind, guest: Socket, refusal: EgressRefusal): void {
  const text = `egress refused: ${EGRESS_REFUSALS[refusal]}\n`
  sendAndClose(guest, kind === 'http' ? renderResponse('403 Forbidden', text) : UNRECOGNIZED_NAME)
}

function sendUnreachable(kind: ProxyKind, guest: Socket): void {
  if (kind === 'tls') return void guest.resetAndDestroy()
  sendAndClose(guest, renderResponse('502 Bad Gateway', 'the host does not answer\n'))
}

/** A fatal TLS alert (RFC 8446 §6.2), which clients report as "unrecognized name". */
const UNRECOGNIZED_NAME = Buffer.from([21, 3, 3, 0, 2, 2, 112])

const renderResponse = (status: string, text: string): Buffer =>
  Buffer.from(
    `HTTP/1.1 ${status}\r\ncontent-type: text/plain\r\ncontent-length: ${text.length}\r\nconnection: close\r\n\r\n${text}`,
  )

/** Discards what the guest still sends: closing a socket with unread bytes resets it, and the guest would lose the response. */
function sendAndClose(guest: Socket, bytes: Buffer): void {
  guest.resume()
  guest.end(bytes)
  const timer = setTimeout(() => guest.destroy(), LINGER_MS)
  guest.once('end', () => guest.destroySoon())
  guest.once('close', () => clearTimeout(timer))
}
