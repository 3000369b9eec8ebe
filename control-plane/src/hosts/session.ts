/**
 * One HTTP/2 connection to a host agent, opened on first use and reopened after it broke. All requests of this process
 * to that host are streams of it.
 */
import {
  type ClientHttp2Session,
  type ClientHttp2Stream,
  connect,
  type OutgoingHttpHeaders as Headers,
} from 'node:http2'
import { connect as connectSocket } from 'node:net'
import { traceHeader } from '@warren/kit/span'
import { HostError } from './host-error.ts'

/** What one stream may receive before it is read: enough for hundreds of MB/s, and little for a reader that stalls. */
const STREAM_WINDOW_BYTES = 256 * 1024
/** For all streams together: large enough that a few slow readers never block the others. */
const SESSION_WINDOW_BYTES = 2 ** 30
/**
 * Node never stops counting unsent bytes of reset streams; its default limit of 10 MB would eventually reject
 * everything.
 */
const NO_MEMORY_LIMIT_MB = 1e9

export type HostSession = {
  /**
   * When the signal fires the stream is reset, not ended: the other side must not take a truncated body for a complete
   * one.
   */
  open(headers: Headers, signal: AbortSignal, options?: { endStream?: boolean }): ClientHttp2Stream
  close(): void
}

export function createHostSession(address: string): HostSession {
  let current: ClientHttp2Session | undefined
  let closed = false

  function session(): ClientHttp2Session {
    if (closed) throw new HostError('unreachable', `the connection to ${address} is closed`)
    if (current && !current.closed && !current.destroyed) return current
    const opened = connect('http://host', {
      createConnection: () => connectSocket(socketPath(address)),
      settings: { initialWindowSize: STREAM_WINDOW_BYTES, enablePush: false },
      maxSessionMemory: NO_MEMORY_LIMIT_MB,
    })
    opened.on('connect', () => opened.setLocalWindowSize(SESSION_WINDOW_BYTES))
    // Every stream gets the error too; without a listener it would end the process.
    opened.on('error', () => {})
    opened.on('goaway', () => discard(opened))
    opened.on('close', () => discard(opened))
    // An idle connection must not keep the process alive.
    opened.unref()
    current = opened
    return opened
  }

  function discard(opened: ClientHttp2Session): void {
    if (current === opened) current = undefined
  }

  return {
    open(headers, signal, { endStream = false } = {}) {
      signal.throwIfAborted()
      const stream = bytesOnly(session().request({ ...headers, ...traceHeader() }, { endStream }))
      const abort = () => resetStream(stream, signal.reason)
      signal.addEventListener('abort', abort)
      stream.once('close', () => signal.removeEventListener('abort', abort))
      stream.on('error', () => {}) // Reported by the code that waits for the response.
      return stream
    },
    close() {
      closed = true
      current?.destroy()
    },
  }
}

/**
 * Converts text to bytes before Node gets it. Node (26.10) passes queued text and bytes on in one call and frees the
 * text before it is sent: the first bytes of a request head then arrive as arbitrary heap content.
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
 * Always destroys with an error: `close(NGHTTP2_CANCEL)` and a plain `destroy()` may send the end of the body first,
 * and half an upload would become a complete file.
 */
export function resetStream(stream: ClientHttp2Stream, reason?: unknown): void {
  if (stream.destroyed) return
  stream.destroy(reason instanceof Error ? reason : new Error('aborted'))
}

function socketPath(address: string): string {
  if (!address.startsWith('unix:')) throw new HostError('unreachable', `${address} is not a host address`)
  return address.slice('unix:'.length)
}
