/**
 * Two streams tied together: the control plane's and the guest's. Back-pressure passes through both, an end passes as
 * an end, and whatever breaks on one side is broken off on the other, so that a command whose caller is gone is killed
 * and a guest that hangs up is noticed.
 *
 * Of the guest's headers only what the other side needs goes on: the guest is outside the door.
 */
import http2, { type ClientHttp2Session, type IncomingHttpHeaders, type ServerHttp2Stream } from 'node:http2'
import { HostError } from '../host-error.ts'
import { openGuestStream } from './channel.ts'

/** A guest that does not even begin to answer is not there. Commands answer at once, before they have output. */
const ANSWER_LIMIT_MS = 15_000
/**
 * These answer when something is done: an upload, the end of a process, input that a program has to read first. Whoever
 * asked has a limit of its own.
 */
const TAKES_ITS_TIME = /^(PUT |DELETE |GET \/processes\/\w+\/wait|POST \/processes\/\w+\/input)/

/** These stay open for as long as the caller likes. */
const STAYS_OPEN = /^(POST \/(shell|tunnel)|GET \/processes\/\w+\/connect)/
/** So many readers, shells and tunnels of one guest. */
export const STAYING_MAX = 512
/**
 * All streams of one guest: readers and tunnels leave room for execs, and all of them for what we ask ourselves. It
 * allows 1024; more would wait for their turn, unseen.
 */
export const STREAMS_MAX = 900
const streams = new WeakMap<ClientHttp2Session, number>()

export async function passToGuest(
  session: ClientHttp2Session,
  caller: ServerHttp2Stream,
  request: { ':method': string; ':path': string },
): Promise<void> {
  const begun = await beginningOf(caller, request)
  if (caller.destroyed) return
  if (session.closed || session.destroyed) throw new HostError('guest_unreachable', 'the guest was stopped meanwhile')
  const what = `${request[':method']} ${request[':path']}`
  const open = streams.get(session) ?? 0
  if (open >= (STAYS_OPEN.test(what) ? STAYING_MAX : STREAMS_MAX)) {
    throw new HostError('too_many_streams', `${open} streams to this guest are open`)
  }
  const guest = openGuestStream(session, request, { endStream: begun.ended && !begun.piece })
  streams.set(session, open + 1)
  guest.once('close', () => streams.set(session, streams.get(session)! - 1))
  guest.on('error', () => {}) // `close` follows.
  caller.once('close', () => cut(guest, 'the caller went away'))
  if (begun.ended) {
    if (begun.piece) guest.end(begun.piece)
  } else {
    if (begun.piece) guest.write(begun.piece)
    // Not by pipe's own rule: a caller that was cut off may look ended, and half an upload would be a whole file.
    caller.pipe(guest, { end: false })
    caller.once('end', () => (isCut(caller) ? cut(guest, 'the caller was cut off') : guest.end()))
  }
  const headers = await answerOf(guest, TAKES_ITS_TIME.test(what))
  if (caller.destroyed) return
  caller.respond({
    ':status': headers[':status'] ?? 502,
    'content-type': String(headers['content-type'] ?? 'application/octet-stream'),
    ...(/^\d+$/.test(headers['content-length'] ?? '') ? { 'content-length': headers['content-length'] } : {}),
  })
  guest.pipe(caller, { end: false })
  guest.once('end', () => {
    if (guest.rstCode === http2.constants.NGHTTP2_NO_ERROR) caller.end()
    else cut(caller, 'the guest was cut off')
  })
  // Also when its answer was whole: a tunnel may be reset after one direction has ended.
  guest.once('close', () => {
    const { NGHTTP2_NO_ERROR } = http2.constants
    if (!guest.readableEnded || guest.rstCode !== NGHTTP2_NO_ERROR) return cut(caller, 'the guest hung up')
    // It wants no more, as a shell that has ended; the caller need not go on sending.
    if (!caller.readableEnded) caller.close(NGHTTP2_NO_ERROR)
  })
}

/** It says what it wants in its body. For input to a process the wait cost more than it saved (bench, pty-echo-port). */
const BEGINS_WITH_BODY = /^POST \/exec/

/**
 * What has come of the body so far, and whether that is all. Head, body and end then leave together: a guest that is
 * emulated takes its time for every single thing it is woken for.
 */
async function beginningOf(
  caller: ServerHttp2Stream,
  request: { ':method': string; ':path': string },
): Promise<{ piece?: Buffer; ended: boolean }> {
  const call = `${request[':method']} ${request[':path']}`
  if (caller.endAfterHeaders) return { ended: true }
  if (!BEGINS_WITH_BODY.test(call)) return { ended: false }
  let ended = false
  caller.once('end', () => {
    ended = true
  })
  await new Promise<void>((resolve) => {
    caller.once('readable', resolve)
    caller.once('close', resolve)
  })
  const piece: Buffer | null = caller.read()
  // Its end, if it came along, is told a moment later.
  await new Promise((resolve) => setImmediate(resolve))
  if (ended && isCut(caller)) caller.destroy()
  return { ...(piece ? { piece } : {}), ended }
}

const isCut = (caller: ServerHttp2Stream): boolean =>
  caller.aborted || caller.rstCode !== http2.constants.NGHTTP2_NO_ERROR

/** With an error, always: `close(NGHTTP2_CANCEL)` and a plain `destroy()` may send the end of the body first. */
function cut(stream: http2.Http2Stream, why: string): void {
  if (!stream.destroyed) stream.destroy(new Error(why))
}

function answerOf(
  guest: http2.ClientHttp2Stream,
  takesItsTime: boolean,
): Promise<IncomingHttpHeaders & { ':status'?: number }> {
  return new Promise((resolve, reject) => {
    const lost = () => reject(new HostError('guest_unreachable', 'the guest hung up'))
    const timer = takesItsTime ? undefined : setTimeout(() => cut(guest, 'the guest does not answer'), ANSWER_LIMIT_MS)
    guest.once('response', (headers) => {
      clearTimeout(timer)
      guest.off('close', lost)
      resolve(headers)
    })
    guest.once('close', () => clearTimeout(timer))
    guest.once('close', lost)
  })
}
