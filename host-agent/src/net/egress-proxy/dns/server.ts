/**
 * The resolver of the sandboxes: 169.254.1.1 for them, whatever address they ask (the host's table sees to it). The
 * source address is the sandbox; `judge` says what becomes of its question: answered here, or passed to the host's name
 * servers.
 *
 * Nothing a guest asks is logged.
 */
import { createSocket } from 'node:dgram'
import { createServer, type Socket } from 'node:net'
import type { Log } from '@warren/kit/log'
import type { Upstream } from '../../egress-proxy-protocol.ts'
import { Shares } from '../source-limiter.ts'
import { forwardTcp, forwardUdp } from './forward.ts'
import { parseQuery, type Query, RCODE, renderFailure } from './message.ts'
import { readFrames, renderFrame } from './tcp-frames.ts'

/** A guest's resolver asks again after 5 s: by then two of our tries have failed and it has our answer. */
const TRY_MS = 2_000
const TRIES = 2
/** A question under way is an open socket of the host agent, whose hard limit can be as low as 20000. */
const QUESTIONS = { perSource: 64, total: 1_024 }
const CONNECTIONS = { perSource: 8, total: 256 }
const CONNECTION_IDLE_MS = 10_000

export type DnsServer = { port: number; close: () => Promise<void> }
export type DnsDeps = {
  upstreams: () => Promise<Upstream[]>
  log: Pick<Log, 'warn'>
  /** An answer, or the question to pass on in its place. */
  judge: (source: string, query: Query, packet: Buffer) => Verdict
}
export type Verdict = { answer: Buffer } | { ask: Buffer }
type Forward = typeof forwardUdp

/** Over UDP and TCP on the same port. */
export async function startDns(deps: DnsDeps, address: string, port: number): Promise<DnsServer> {
  const questions = new Shares(QUESTIONS)
  const udp = await startUdp(deps, questions, address, port)
  try {
    const bound = udp.port
    const tcp = await startTcp(deps, questions, address, bound)
    return { port: bound, close: async () => void (await Promise.all([udp.close(), tcp.close()])) }
  } catch (error) {
    await udp.close()
    throw error
  }
}

async function startUdp(deps: DnsDeps, questions: Shares, address: string, port: number): Promise<DnsServer> {
  const socket = createSocket('udp4')
  const { promise: listening, resolve, reject } = Promise.withResolvers<void>()
  socket.once('error', reject)
  socket.bind(port, address, resolve)
  await listening
  socket.off('error', reject)
  socket.on('error', (error) => deps.log.warn({ err: error }, 'the sandboxes’ resolver had an error on its socket'))
  let open = true
  socket.on('message', async (packet, from) => {
    const reply = await answer(deps, questions, from.address, packet, forwardUdp)
    // A reply that cannot be sent (the sandbox is gone) needs no word.
    if (reply !== undefined && open) socket.send(reply, from.port, from.address, () => {})
  })
  const close = () =>
    new Promise<void>((resolve) => {
      open = false
      socket.close(() => resolve())
    })
  return { port: socket.address().port, close }
}

async function startTcp(deps: DnsDeps, questions: Shares, address: string, port: number): Promise<DnsServer> {
  const connections = new Shares(CONNECTIONS)
  const open = new Set<Socket>()
  const server = createServer((socket) => {
    const release = connections.take(socket.remoteAddress ?? '')
    if (release === undefined) return socket.destroy()
    open.add(socket)
    socket.once('close', () => {
      open.delete(socket)
      release()
    })
    void serveConnection(deps, questions, socket)
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

/** One question after the other; the next is read when this one is answered. */
async function serveConnection(deps: DnsDeps, questions: Shares, socket: Socket): Promise<void> {
  const source = socket.remoteAddress ?? ''
  socket.setTimeout(CONNECTION_IDLE_MS, () => socket.destroy())
  try {
    for await (const packet of readFrames(socket)) {
      const reply = await answer(deps, questions, source, packet, forwardTcp)
      if (reply === undefined || socket.destroyed) return
      socket.write(renderFrame(reply))
    }
  } catch {
    // The guest cut the connection: nobody is left to be told.
  } finally {
    socket.destroy()
  }
}

/** undefined: no answer, because it was no question. */
async function answer(
  deps: DnsDeps,
  questions: Shares,
  source: string,
  packet: Buffer,
  forward: Forward,
): Promise<Buffer | undefined> {
  const query = parseQuery(packet)
  if (query === undefined) return undefined
  const verdict = deps.judge(source, query, packet)
  if ('answer' in verdict) return verdict.answer
  const release = questions.take(source)
  if (release === undefined) return renderFailure(query, RCODE.SERVFAIL)
  try {
    return await ask(await deps.upstreams(), verdict.ask, query, forward)
  } finally {
    release()
  }
}

/** The servers in their order, and from the first again, until one answers. */
async function ask(upstreams: Upstream[], packet: Buffer, query: Query, forward: Forward): Promise<Buffer> {
  for (let attempt = 0; attempt < TRIES && upstreams.length > 0; attempt++) {
    try {
      return await forward(packet, query, upstreams[attempt % upstreams.length]!, TRY_MS)
    } catch {
      // The next one may know; when none does, the guest learns that below.
    }
  }
  return renderFailure(query, RCODE.SERVFAIL)
}
