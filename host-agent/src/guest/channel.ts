/**
 * The connection to a guest agent: HTTP/2 over virtio-serial, after the hello described in protocol/src/guest-api.ts.
 *
 * A hello without a reply is repeated with a new nonce on new connections, because a guest that was just restored may
 * miss the first one. Bytes that arrive before the reply with this nonce belong to an earlier connection and are skipped.
 */
import { randomBytes } from 'node:crypto'
import http2, {
  type ClientHttp2Session,
  type ClientHttp2Stream,
  type ClientSessionRequestOptions,
  type OutgoingHttpHeaders,
} from 'node:http2'
import type net from 'node:net'
import { GUEST_HELLO_TIMEOUT_MS, guestHello, guestHelloReply } from '@warren/protocol'
import { connectWhenThere } from '../vmm/qmp.ts'
import { outliveStream } from './outlive-streams.ts'

export type GuestChannel = { session: ClientHttp2Session; closed: Promise<void>; close(): void }

/** Limits what an unread stream buffers. The session window is large, so that an unread stream blocks no other. */
const STREAM_WINDOW_BYTES = 256 * 1024
const SESSION_WINDOW_BYTES = 16 * 1024 * 1024
/**
 * Node counts the unsent bytes of a reset stream towards the session's memory for as long as the session exists. With a
 * limit, a long session would at some point open no more streams. The windows and the number of streams
 * (relay-to-guest.ts) bound the memory instead.
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
      return await connectOnce(paths, limit)
    } catch (error) {
      signal.throwIfAborted()
      if (!limit.aborted) throw error
    }
  }
}

/**
 * Opens a request to the guest. Frames that the guest agent never sends end the session immediately: a guest can send
 * them faster than this process can handle them, and all other guests would wait.
 */
export function openGuestStream(
  session: ClientHttp2Session,
  headers: OutgoingHttpHeaders,
  options?: ClientSessionRequestOptions,
): ClientHttp2Stream {
  const stream = session.request(headers, options)
  outliveStream(session, stream)
  for (const event of ['headers', 'continue']) stream.once(event, () => endSession(session, event))
  return stream
}

const endSession = (session: ClientHttp2Session, event: string): void =>
  session.destroy(new Error(`the guest sent an unexpected ${event} frame`))

/** One attempt, on new connections. */
async function connectOnce(paths: { agent: string; hello: string }, signal: AbortSignal): Promise<GuestChannel> {
  const nonce = randomBytes(16).toString('hex')
  const sockets: net.Socket[] = []
  try {
    for (const file of [paths.agent, paths.hello]) sockets.push(await connectWhenThere(file, signal))
    const [agent, hello] = sockets as [net.Socket, net.Socket]
    for (const socket of sockets) socket.on('error', () => {}) // `close` follows.
    hello.write(guestHello(nonce))
    await skipPast(hello, guestHelloReply(nonce), signal)
    // Not earlier: until the guest has ended the previous session, it would read these bytes as part of that session.
    agent.write(guestHello(nonce))
    await skipPast(agent, guestHelloReply(nonce), signal)
    return await openSession(agent, hello)
  } catch (error) {
    for (const socket of sockets) socket.destroy()
    throw error
  }
}

/** Reads up to and including the line. The bytes after it are put back into the socket. */
function skipPast(socket: net.Socket, line: string, signal: AbortSignal): Promise<void> {
  const expected = Buffer.from(line, 'latin1')
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
      const at = held.indexOf(expected)
      if (at !== -1) {
        const rest = held.subarray(at + expected.length)
        settle()
        if (rest.length > 0) socket.unshift(rest)
        return
      }
      const retained = Math.min(held.length, expected.length - 1)
      skipped += held.length - retained
      held = held.subarray(held.length - retained)
      if (skipped > SKIP_MAX_BYTES) settle(new Error(`no hello within ${SKIP_MAX_BYTES} bytes from the guest`))
    }
    const onClose = () => settle(new Error('the guest closed the connection during the hello'))
    const onAbort = () => settle(signal.reason)
    if (signal.aborted) return reject(signal.reason)
    socket.on('data', onData)
    socket.once('close', onClose)
    signal.addEventListener('abort', onAbort, { once: true })
  })
}

async function openSession(agent: net.Socket, hello: net.Socket): Promise<GuestChannel> {
  const session = http2.connect('http://guest', {
    createConnection: () => agent,
    settings: { initialWindowSize: STREAM_WINDOW_BYTES, enablePush: false },
    maxSessionMemory: NO_MEMORY_LIMIT_MB,
  })
  session.on('error', () => {}) // `close` follows.
  for (const event of ['goaway', 'altsvc', 'origin']) session.once(event, () => endSession(session, event))
  const closed = new Promise<void>((resolve) => session.once('close', () => resolve()))
  // Node takes over what the socket has received one turn later, and throws where no one can catch it if the session is
  // destroyed before. So nothing here does until it is connected.
  await Promise.race([new Promise((resolve) => session.once('connect', resolve)), closed])
  if (!session.destroyed) session.setLocalWindowSize(SESSION_WINDOW_BYTES)
  hello.resume()
  const close = () => {
    session.destroy()
    hello.destroy()
  }
  hello.once('close', close)
  if (hello.destroyed) close()
  void closed.then(() => hello.destroy())
  return { session, closed, close }
}
