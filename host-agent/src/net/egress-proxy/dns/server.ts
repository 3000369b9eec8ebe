/**
 * The DNS server of the sandboxes. The host's table redirects their queries here, whichever server they were sent to. The
 * source address identifies the sandbox; `decide` says whether a query is answered here or forwarded to the name servers of
 * the host.
 *
 * What a sandbox asks above its rate is delayed over TCP, and dropped by its slot's table over UDP (netd/nft/slot-policy.ts): its
 * resolver asks again, and never gets a wrong answer.
 *
 * Queries are never logged.
 */
import { createSocket } from 'node:dgram'
import { createServer, type Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import type { Log } from '@warren/kit/log'
import type { Upstream } from '../../egress-proxy-protocol.ts'
import { SourceLimiter } from '../source-limiter.ts'
import { SourceRate } from '../source-rate.ts'
import { forwardTcp, forwardUdp } from './forward.ts'
import { parseQuery, type Query, RCODE, renderEmptyResponse } from './message.ts'
import { readFrames, renderFrame } from './tcp-frames.ts'

/** A guest's resolver repeats a query after 5 s. By then both attempts have failed and it has our response. */
const ATTEMPT_MS = 2_000
const ATTEMPTS = 2
/** A query in progress costs a descriptor, and the limit of a process can be as low as 20000. */
const QUERIES = { perSource: 64, total: 1_024 }
const CONNECTIONS = { perSource: 8, total: 256 }
const CONNECTION_IDLE_MS = 10_000

export type DnsServer = { port: number; close: () => Promise<void> }
export type DnsDeps = {
  upstreams: () => Promise<Upstream[]>
  log: Pick<Log, 'warn'>
  decide: (source: string, query: Query, packet: Buffer) => DnsDecision
  /** Queries over TCP of one source. */
  perSecond: number
}
/** The response, or the query to forward. */
export type DnsDecision = { respond: Buffer } | { forward: Buffer }
type Forward = typeof forwardUdp

/** Listens on UDP and TCP, on the same port. */
export async function startDns(deps: DnsDeps, address: string, port: number): Promise<DnsServer> {
  const queries = new SourceLimiter(QUERIES)
  const udp = await startUdp(deps, queries, address, port)
  try {
    const bound = udp.port
    const tcp = await startTcp(deps, queries, address, bound)
    return { port: bound, close: async () => void (await Promise.all([udp.close(), tcp.close()])) }
  } catch (error) {
    await udp.close()
    throw error
  }
}

async function startUdp(deps: DnsDeps, queries: SourceLimiter, address: string, port: number): Promise<DnsServer> {
  const socket = createSocket('udp4')
  const { promise: listening, resolve, reject } = Promise.withResolvers<void>()
  socket.once('error', reject)
  socket.bind(port, address, resolve)
  await listening
  socket.off('error', reject)
  socket.on('error', (error) => deps.log.warn({ err: error }, 'the DNS socket failed'))
  let open = true
  socket.on('message', async (packet, from) => {
    const reply = await answer(deps, queries, from.address, packet, forwardUdp)
    // Sending fails when the sandbox has ended; then there is nothing to report.
    if (reply !== undefined && open) socket.send(reply, from.port, from.address, () => {})
  })
  const close = () =>
    new Promise<void>((resolve) => {
      open = false
      socket.close(() => resolve())
    })
  return { port: socket.address().port, close }
}

async function startTcp(deps: DnsDeps, queries: SourceLimiter, address: string, port: number): Promise<DnsServer> {
  const connections = new SourceLimiter(CONNECTIONS)
  const rate = new SourceRate(deps.perSecond, deps.perSecond)
  const open = new Set<Socket>()
  const server = createServer((socket) => {
    const release = connections.acquire(socket.remoteAddress ?? '')
    if (release === undefined) return socket.destroy()
    open.add(socket)
    socket.once('close', () => {
      open.delete(socket)
      release()
    })
    void serveConnection(deps, queries, rate, socket)
  })
  const { promise: listening, resolve, reject } = Promise.withResolvers<void>()
  server.once('error', reject)
  server.listen(port, address, resolve)
  await listening
  server.off('error', reject)
  const close = () =>
    new Promise<void>((resolve) => {
      server.close(() => resolve())
      for (const socket of open) socket.destroy()
    })
  return { port, close }
}

/** Serves queries in order: the next one is read when the previous one is answered. */
async function serveConnection(deps: DnsDeps, queries: SourceLimiter, rate: SourceRate, socket: Socket): Promise<void> {
  const source = socket.remoteAddress ?? ''
  socket.setTimeout(CONNECTION_IDLE_MS, () => socket.destroy())
  try {
    for await (const packet of readFrames(socket)) {
      const waitMs = rate.take(source)
      if (waitMs > 0) await delay(waitMs, undefined, { ref: false })
      const reply = await answer(deps, queries, source, packet, forwardTcp)
      if (reply === undefined || socket.destroyed) return
      socket.write(renderFrame(reply))
    }
  } catch {
    // The guest closed the connection.
  } finally {
    socket.destroy()
  }
}

/** Undefined when the packet is not a query. */
async function answer(
  deps: DnsDeps,
  queries: SourceLimiter,
  source: string,
  packet: Buffer,
  forward: Forward,
): Promise<Buffer | undefined> {
  const query = parseQuery(packet)
  if (query === undefined) return undefined
  const decision = deps.decide(source, query, packet)
  if ('respond' in decision) return decision.respond
  const release = queries.acquire(source)
  if (release === undefined) return renderEmptyResponse(query, RCODE.SERVFAIL)
  try {
    return await forwardToAny(await deps.upstreams(), decision.forward, query, forward)
  } finally {
    release()
  }
}

/** Tries the servers in order, starting over after the last, until one answers. */
async function forwardToAny(upstreams: Upstream[], packet: Buffer, query: Query, forward: Forward): Promise<Buffer> {
  for (let attempt = 0; attempt < ATTEMPTS && upstreams.length > 0; attempt++) {
    try {
      return await forward(packet, query, upstreams[attempt % upstreams.length]!, ATTEMPT_MS)
    } catch {
      // The next server may answer; when none does, the guest gets SERVFAIL.
    }
  }
  return renderEmptyResponse(query, RCODE.SERVFAIL)
}
