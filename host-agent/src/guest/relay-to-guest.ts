/**
 * Connects a stream of the control plane with a stream to the guest agent. Back-pressure passes through both, an end is
 * forwarded as an end, and a failure on one side resets the other: a command whose caller disconnects is killed, and a
 * caller notices when the guest disconnects.
 *
 * The guest is not trusted. Of its response headers only those that the caller needs are forwarded.
 */
import http2, { type ClientHttp2Session, type IncomingHttpHeaders, type ServerHttp2Stream } from 'node:http2'
import { traceHeader } from '@warren/kit/span'
import type { GuestRoute } from '@warren/protocol'
import { HostError } from '../host-error.ts'
import { openGuestStream } from './channel.ts'
import { addGuestSpans } from './guest-spans.ts'

/** A guest that has not sent response headers by then is unreachable. Routes marked `slowToAnswer` have no limit. */
const RESPONSE_LIMIT_MS = 15_000

/** Streams per guest up to which routes marked `staysOpen` are served: readers, shells and tunnels. */
export const STAYING_OPEN_MAX = 512
/**
 * Streams per guest up to which all other routes are served, so there is always room for execs. The guest allows 1024;
 * the rest is for requests of the host agent itself. Beyond 1024 requests would queue without notice.
 */
export const STREAMS_MAX = 900
const openStreams = new WeakMap<ClientHttp2Session, number>()

export async function relayToGuest(
  session: ClientHttp2Session,
  caller: ServerHttp2Stream,
  route: GuestRoute,
  /** Path with its query. */
  path: string,
): Promise<void> {
  const start = await readStart(caller, route)
  if (caller.destroyed) return
  if (session.closed || session.destroyed) throw new HostError('guest_unreachable', 'the guest was stopped')
  const open = openStreams.get(session) ?? 0
  if (open >= (route.staysOpen ? STAYING_OPEN_MAX : STREAMS_MAX)) {
    throw new HostError('too_many_streams', `${open} streams to this guest are open`)
  }
  const sentAt = performance.now()
  const guest = openGuestStream(
    session,
    { ':method': route.method, ':path': path, ...traceHeader() },
    { endStream: start.ended && !start.bytes },
  )
  openStreams.set(session, open + 1)
  guest.once('close', () => openStreams.set(session, openStreams.get(session)! - 1))
  guest.on('error', () => {}) // `close` follows.
  caller.once('close', () => abort(guest, 'the caller disconnected'))
  if (start.ended) {
    if (start.bytes) guest.end(start.bytes)
  } else {
    if (start.bytes) guest.write(start.bytes)
    // `end: false`: a caller that was reset may look ended, and half an upload would become a whole file.
    caller.pipe(guest, { end: false })
    caller.once('end', () => (isReset(caller) ? abort(guest, 'the caller disconnected') : guest.end()))
  }
  const headers = await readResponseHeaders(guest, route)
  addGuestSpans(`guest: ${route.path}`, headers, { from: sentAt, to: performance.now() })
  if (caller.destroyed) return
  caller.respond({
    ':status': headers[':status'] ?? 502,
    'content-type': String(headers['content-type'] ?? 'application/octet-stream'),
    ...(/^\d+$/.test(headers['content-length'] ?? '') ? { 'content-length': headers['content-length'] } : {}),
  })
  relayResponse(guest, caller)
}

function relayResponse(guest: http2.ClientHttp2Stream, caller: ServerHttp2Stream): void {
  const { NGHTTP2_NO_ERROR } = http2.constants
  guest.pipe(caller, { end: false })
  guest.once('end', () => {
    if (guest.rstCode === NGHTTP2_NO_ERROR) caller.end()
    else abort(caller, 'the guest reset the stream')
  })
  // Also after a complete response: a tunnel may be reset after one direction has ended.
  const onGuestClosed = () => {
    if (!guest.readableEnded || guest.rstCode !== NGHTTP2_NO_ERROR) return abort(caller, 'the guest disconnected')
    // The guest reads no more, for example because the shell has ended. The caller can stop sending.
    if (!caller.readableEnded) caller.close(NGHTTP2_NO_ERROR)
  }
  // The guest may have reset the stream together with its response head, before this listener is attached.
  if (guest.destroyed) onGuestClosed()
  else guest.once('close', onGuestClosed)
}

/**
 * The bytes of the body received so far, and whether the body is complete. Only routes marked `waitsForBody` wait for
 * bytes: request head, body and end then reach the guest together.
 */
async function readStart(
  caller: ServerHttp2Stream,
  { waitsForBody }: GuestRoute,
): Promise<{ bytes?: Buffer; ended: boolean }> {
  if (caller.endAfterHeaders) return { ended: true }
  if (!waitsForBody) return { ended: false }
  let ended = false
  caller.once('end', () => {
    ended = true
  })
  await new Promise<void>((resolve) => {
    caller.once('readable', resolve)
    caller.once('close', resolve)
  })
  const bytes: Buffer | null = caller.read()
  // If the end of the body has arrived too, `end` is emitted in the next turn of the event loop.
  await new Promise((resolve) => setImmediate(resolve))
  if (ended && isReset(caller)) caller.destroy()
  return { ...(bytes ? { bytes } : {}), ended }
}

const isReset = (caller: ServerHttp2Stream): boolean =>
  caller.aborted || caller.rstCode !== http2.constants.NGHTTP2_NO_ERROR

/** Always with an error: `close(NGHTTP2_CANCEL)` and a plain `destroy()` may send the end of the body first. */
function abort(stream: http2.Http2Stream, reason: string): void {
  if (!stream.destroyed) stream.destroy(new Error(reason))
}

function readResponseHeaders(
  guest: http2.ClientHttp2Stream,
  { slowToAnswer }: GuestRoute,
): Promise<IncomingHttpHeaders & { ':status'?: number }> {
  return new Promise((resolve, reject) => {
    const onLost = () => reject(new HostError('guest_unreachable', 'the guest disconnected before it responded'))
    const timer = slowToAnswer
      ? undefined
      : setTimeout(() => abort(guest, 'the guest did not respond in time'), RESPONSE_LIMIT_MS)
    guest.once('response', (headers) => {
      clearTimeout(timer)
      guest.off('close', onLost)
      resolve(headers)
    })
    guest.once('close', () => clearTimeout(timer))
    guest.once('close', onLost)
  })
}
