/**
 * One HTTP/2 connection to a host agent, opened when it is first needed and again after it broke. All requests of
 * this process to that host are streams of it.
 */
import {
  type ClientHttp2Session,
  type ClientHttp2Stream,
  connect,
  type OutgoingHttpHeaders as Headers,
} from 'node:http2'
import { connect as connectSocket } from 'node:net'
import { HostError } from './failure.ts'

/** What one stream may send before it is read: enough for hundreds of MB/s, little for a reader that stalls. */
const STREAM_WINDOW_BYTES = 256 * 1024
/** For all streams together: so many that a few slow readers never hold up the others. */
const SESSION_WINDOW_BYTES = 2 ** 30
/** Node counts the bytes that a reset stream had not sent yet for ever; its default of 10 MB would then refuse all. */
const NO_MEMORY_LIMIT_MB = 1e9

export type HostSession = {
  /** The stream is reset, never ended, when the signal fires: the other end must not take a cut body for a whole one. */
  open(headers: Headers, signal: AbortSignal, options?: { endStream?: boolean }): ClientHttp2Stream
  close(): void
}

export function createHostSession(address: string): HostSession {
  let current: ClientHttp2Session | undefined
  let closed = false

  function session(): ClientHttp2Session {
    if (closed) throw new HostError('unreachable', `the connection to ${address} was closed by us`)
    if (current && !current.closed && !current.destroyed) return current
    const mine = connect('http://host', {
      createConnection: () => connectSocket(socketPath(address)),
      settings: { initialWindowSize: STREAM_WINDOW_BYTES, enablePush: false },
      maxSessionMemory: NO_MEMORY_LIMIT_MB,
    })
    mine.on('connect', () => mine.setLocalWindowSize(SESSION_WINDOW_BYTES))
    // Every stream hears of it too; without a listener it would end the process.
    mine.on('error', () => {})
    mine.on('goaway', () => forget(mine))
    mine.on('close', () => forget(mine))
    // An idle connection alone must not keep a process from ending.
    mine.unref()
    current = mine
    return mine
  }

  function forget(mine: ClientHttp2Session): void {
    if (current === mine) current = undefined
  }

  return {
    open(headers, signal, { endStream = false } = {}) {
      signal.throwIfAborted()
      const stream = bytesOnly(session().request(headers, { endStream }))
      const cut = () => resetStream(stream, signal.reason)
      signal.addEventListener('abort', cut)
      stream.once('close', () => signal.removeEventListener('abort', cut))
      stream.on('error', () => {}) // Whoever waits for the answer learns of it there.
      return stream
    },
    close() {
      closed = true
      current?.destroy()
    },
  }
}

/**
 * Text is turned into bytes before Node gets it. Text and bytes that wait together are handed over in one call, and Node
 * (26.10) frees the text of it before it is sent: the first bytes of a request head arrive as parts of the heap.
 */
function bytesOnly(stream: ClientHttp2Stream): ClientHttp2Stream {
  const write = stream.write.bind(stream) as (chunk: unknown, ...rest: unknown[]) => boolean
  stream.write = (chunk: unknown, ...rest: unknown[]) => {
    if (typeof chunk !== 'string') return write(chunk, ...rest)
    const encoding = typeof rest[0] === 'string' ? (rest.shift() as BufferEncoding) : 'utf8'
    return write(Buffer.from(chunk, encoding), ...rest)
  }
  return stream
}

/**
 * With an error, always: `close(NGHTTP2_CANCEL)` and a plain `destroy()` may send the end of the body first, and half
 * an upload would be a whole file.
 */
export function resetStream(stream: ClientHttp2Stream, reason?: unknown): void {
  if (stream.destroyed) return
  stream.destroy(reason instanceof Error ? reason : new Error('given up'))
}

function socketPath(address: string): string {
  if (!address.startsWith('unix:')) throw new HostError('unreachable', `${address} is not an address of a host`)
  return address.slice('unix:'.length)
}
