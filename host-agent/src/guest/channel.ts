/**
 * The way to a guest's agent: HTTP/2 over two virtio-serial ports, greeted as protocol/guest-api.ts says.
 *
 * A greeting that is not answered is tried again with a new number on new connections: a guest that was restored a
 * moment ago may miss the first. Nothing that arrives before the answer to our own number is believed: it was meant for
 * somebody else.
 */
import { randomBytes } from 'node:crypto'
import http2, {
  type ClientHttp2Session,
  type ClientHttp2Stream,
  type ClientSessionRequestOptions,
  type OutgoingHttpHeaders,
} from 'node:http2'
import type net from 'node:net'
import { GUEST_HELLO_TIMEOUT_MS, guestHello, guestHelloAnswer } from '@warren/protocol'
import { connectWhenThere } from '../vmm/qmp.ts'

export type GuestChannel = { session: ClientHttp2Session; closed: Promise<void>; close(): void }

/** What a stream that nobody reads may hold here; the session's is large, so that it holds up no other. */
const STREAM_WINDOW_BYTES = 256 * 1024
const SESSION_WINDOW_BYTES = 16 * 1024 * 1024
/**
 * Node counts the bytes that a reset stream had not sent yet for ever: after so many of them no stream would be opened
 * any more. What is held is bounded by the windows and the number of streams (relay-to-guest.ts).
 */
export const NO_MEMORY_LIMIT_MB = 1e9
const SKIP_MAX_BYTES = 64 * 1024 * 1024

export async function openGuestChannel(
  paths: { agent: string; hello: string },
  signal: AbortSignal,
): Promise<GuestChannel> {
  for (;;) {
    const limit = AbortSignal.any([signal, AbortSignal.timeout(GUEST_HELLO_TIMEOUT_MS)])
    try {
      return await greet(paths, limit)
    } catch (error) {
      signal.throwIfAborted()
      if (!limit.aborted) throw error
    }
  }
}

/**
 * A request to the guest. What no agent of ours ever sends ends the session at its first occurrence: a guest can send
 * it much faster than we can hear it, and all the others would wait for us.
 */
export function openGuestStream(
  session: ClientHttp2Session,
  headers: OutgoingHttpHeaders,
  options?: ClientSessionRequestOptions,
): ClientHttp2Stream {
  const stream = session.request(headers, options)
  for (const event of ['headers', 'continue']) stream.once(event, () => endNonsense(session, event))
  return stream
}

const endNonsense = (session: ClientHttp2Session, what: string): void =>
  session.destroy(new Error(`the guest sent ${what}`))

/** One try, on connections of its own. */
async function greet(paths: { agent: string; hello: string }, signal: AbortSignal): Promise<GuestChannel> {
  const nonce = randomBytes(16).toString('hex')
  const sockets: net.Socket[] = []
  try {
    for (const file of [paths.agent, paths.hello]) sockets.push(await connectWhenThere(file, signal))
    const [agent, hello] = sockets as [net.Socket, net.Socket]
    for (const socket of sockets) socket.on('error', () => {}) // `close` follows.
    hello.write(guestHello(nonce))
    await skipPast(hello, guestHelloAnswer(nonce), signal)
    // Only now: until the guest has ended the session before, bytes on the agent port would be taken for its.
    agent.write(guestHello(nonce))
    await skipPast(agent, guestHelloAnswer(nonce), signal)
    return openSession(agent, hello)
  } catch (error) {
    for (const socket of sockets) socket.destroy()
    throw error
  }
}

/** Reads up to and including the line; what follows it goes back into the socket. */
function skipPast(socket: net.Socket, line: string, signal: AbortSignal): Promise<void> {
  const wanted = Buffer.from(line, 'latin1')
  let held = Buffer.alloc(0)
  let skipped = 0
  return new Promise((resolve, reject) => {
    const settle = (error?: unknown) => {
      socket.off('data', onData)
      socket.off('close', onClose)
      signal.removeEventListener('abort', onAbort)
      socket.pause()
      if (error) reject(error)
      else resolve()
    }
    const onData = (chunk: Buffer) => {
      held = Buffer.concat([held, chunk])
      const at = held.indexOf(wanted)
      if (at !== -1) {
        const rest = held.subarray(at + wanted.length)
        settle()
        if (rest.length > 0) socket.unshift(rest)
        return
      }
      const keep = Math.min(held.length, wanted.length - 1)
      skipped += held.length - keep
      held = held.subarray(held.length - keep)
      if (skipped > SKIP_MAX_BYTES) settle(new Error('the guest talks without end instead of greeting'))
    }
    const onClose = () => settle(new Error('the connection to the guest ended'))
    const onAbort = () => settle(signal.reason)
    if (signal.aborted) return reject(signal.reason)
    socket.on('data', onData)
    socket.once('close', onClose)
    signal.addEventListener('abort', onAbort, { once: true })
  })
}

function openSession(agent: net.Socket, hello: net.Socket): GuestChannel {
  const session = http2.connect('http://guest', {
    createConnection: () => agent,
    settings: { initialWindowSize: STREAM_WINDOW_BYTES, enablePush: false },
    maxSessionMemory: NO_MEMORY_LIMIT_MB,
  })
  session.on('error', () => {}) // `close` follows.
  for (const event of ['goaway', 'altsvc', 'origin']) session.once(event, () => endNonsense(session, event))
  session.once('connect', () => session.setLocalWindowSize(SESSION_WINDOW_BYTES))
  hello.resume()
  const closed = new Promise<void>((resolve) => session.once('close', () => resolve()))
  const close = () => {
    session.destroy()
    hello.destroy()
  }
  hello.once('close', close)
  void closed.then(() => hello.destroy())
  return { session, closed, close }
}
