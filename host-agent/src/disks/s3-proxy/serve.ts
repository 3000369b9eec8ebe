/**
 * Serves one request of a guest:
 *
 * 1. The sandbox's address and the token name the mount. Its limits are checked.
 * 2. The request is parsed into an operation (operation.ts), and what is sent to the server is built from that (outgoing.ts).
 * 3. A short body is received first, a long one is streamed.
 * 4. The server's answer is streamed, if it is an object, or else parsed and written anew (answer.ts).
 *
 * Whatever goes wrong, the guest is answered with an error of the protocol, or its connection is cut if the answer has begun.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { hasResult, parseAnswerLength, renderListing, renderResult, selectAnswerHeaders } from './answer.ts'
import type { Counts } from './counts.ts'
import { S3ProxyError, sendError } from './error.ts'
import { readHeaders } from './guest-headers.ts'
import { type Deadlines, LIMITS, type Occupancy } from './limits.ts'
import type { Mount, Mounts } from './mounts.ts'
import { type Operation, parseOperation } from './operation.ts'
import { buildOutgoing } from './outgoing.ts'
import { rewriteParts } from './parts.ts'
import { ProgressTimer, readAll } from './progress.ts'
import { type Body, discard, type Upstream } from './upstream.ts'
import { upstreamInvalid, upstreamTimeout } from './upstream-error.ts'

export type ServeDeps = {
  mounts: Mounts
  occupancy: Occupancy
  upstream: Upstream
  deadlines: Deadlines
  counts: Counts
  warn: (message: string) => void
}

/** Counted as the status of a request whose answer could not be sent completely. */
const GUEST_GONE = 499

/** Settles when the answer is sent or the guest is gone. Never throws. */
export async function serve(
  deps: ServeDeps,
  request: IncomingMessage,
  response: ServerResponse,
  expectsContinue: boolean,
): Promise<void> {
  const controller = new AbortController()
  const { promise: closed, resolve: onClose } = Promise.withResolvers<void>()
  response.once('close', () => {
    controller.abort(new Error('the guest closed the connection'))
    onClose()
  })
  request.on('error', () => {}) // Followed by `close`.
  let operation: Operation | undefined
  let mount: Mount | undefined
  const releases: (() => void)[] = []
  try {
    const headers = readHeaders(request.rawHeaders)
    mount = deps.mounts.authenticate(guestAddress(request), headers.get('authorization'))
    releases.push(deps.occupancy.enterRequest(mount))
    mount.open.add(controller)
    operation = parseOperation(request.method ?? '', request.url ?? '', headers)
    if (operation.isWrite && mount.readOnly) throw new S3ProxyError(403, 'ReadOnly', 'the mount is read-only')
    const exchange = { request, response, expectsContinue, closed, signal: controller.signal, releases }
    await perform(deps, mount, operation, exchange)
  } catch (error) {
    refuse(deps, request, response, error, mount)
  } finally {
    // The answer is complete here. A guest that does not read it must not occupy its place for longer.
    const timer = setTimeout(() => response.destroy(), deps.deadlines.stallMs)
    await closed
    clearTimeout(timer)
    mount?.open.delete(controller)
    for (const release of releases) release()
    deps.counts.addRequest(operation?.name ?? '', response.writableFinished ? response.statusCode : GUEST_GONE)
  }
}

export const guestAddress = ({ socket }: Pick<IncomingMessage, 'socket'>): string =>
  (socket.remoteAddress ?? '').replace(/^::ffff:/, '')

type Exchange = {
  request: IncomingMessage
  response: ServerResponse
  expectsContinue: boolean
  /** When the answer is sent or the guest is gone. */
  closed: Promise<void>
  signal: AbortSignal
  /** Called at the end of the request. */
  releases: (() => void)[]
}

async function perform(deps: ServeDeps, mount: Mount, operation: Operation, exchange: Exchange): Promise<void> {
  const outgoing = buildOutgoing(mount, operation)
  if (exchange.expectsContinue) exchange.response.writeContinue()
  const body = await receiveBody(deps, mount, operation, exchange)
  const sending = {
    ...{ mount, outgoing, body, signal: exchange.signal, isRepeatable: operation.isRepeatable },
    answerMs: SLOW.has(operation.name) ? deps.deadlines.slowAnswerMs : deps.deadlines.answerMs,
  }
  const answer = await deps.upstream.send(sending).catch((error) => {
    if (isFailureOfStore(error) && !exchange.signal.aborted) deps.mounts.reportAnswer(mount, false)
    throw error
  })
  deps.mounts.reportAnswer(mount, true)
  await relayAnswer(deps, mount, operation, answer, exchange)
}

/** The store refuses the credentials or the bucket, or is not reached. Other errors are about one object or one request. */
const isFailureOfStore = (error: unknown): boolean =>
  error instanceof S3ProxyError && (error.status === 403 || error.status >= 500 || error.code === 'NoSuchBucket')

const SLOW: ReadonlySet<Operation['name']> = new Set(['copyObject', 'copyPart', 'completeUpload'])

async function receiveBody(
  deps: ServeDeps,
  mount: Mount,
  { name, length }: Operation,
  { request, releases }: Exchange,
): Promise<Body> {
  if (length === 0) return Buffer.alloc(0)
  if (name !== 'completeUpload' && length > LIMITS.smallUploadBytes) return { stream: request, length }
  releases.push(deps.occupancy.reserveBytes(mount, length))
  const tooSlow = new S3ProxyError(408, 'RequestTimeout', 'the body of the request did not arrive in time')
  const received = await readAll(request, {
    maxBytes: length,
    limitMs: deps.deadlines.stallMs,
    tooLong: tooSlow,
    tooSlow,
  })
  return name === 'completeUpload' ? Buffer.from(rewriteParts(received.toString())) : received
}

async function relayAnswer(
  deps: ServeDeps,
  mount: Mount,
  operation: Operation,
  answer: IncomingMessage,
  exchange: Exchange,
): Promise<void> {
  const { response } = exchange
  const status = answer.statusCode ?? 502
  const headers = selectAnswerHeaders(answer.headers)
  if (operation.name === 'getObject' && status !== 304) return streamObject(deps, answer, exchange, headers)
  if (operation.name === 'listObjects') {
    const limits = { maxBytes: LIMITS.listingBytes, limitMs: deps.deadlines.answerMs }
    const text = await readAnswer(deps, mount, answer, exchange, limits)
    return sendXml(response, renderListing(mount, operation, text))
  }
  if (hasResult(operation)) {
    // Servers send spaces, for minutes, until they know the result of a copy or completion.
    const limits = { maxBytes: LIMITS.answerBytes, limitMs: deps.deadlines.slowAnswerMs }
    const text = await readAnswer(deps, mount, answer, exchange, limits)
    return sendXml(response, renderResult(operation, text))
  }
  discard(answer)
  const length = operation.name === 'headObject' ? parseAnswerLength(answer.headers) : 0
  if (length !== undefined && status !== 204 && status !== 304) headers['content-length'] = String(length)
  response.writeHead(status, headers)
  response.end()
}

/** The memory stays reserved until the answer is sent, which is about as long as this text. */
async function readAnswer(
  { occupancy }: ServeDeps,
  mount: Mount,
  answer: IncomingMessage,
  { releases }: Exchange,
  { maxBytes, limitMs }: { maxBytes: number; limitMs: number },
): Promise<string> {
  try {
    const bytes = Math.min(parseAnswerLength(answer.headers) ?? maxBytes, maxBytes)
    releases.push(occupancy.reserveBytes(mount, bytes))
    const limits = { maxBytes, limitMs, tooLong: upstreamInvalid(), tooSlow: upstreamTimeout() }
    return (await readAll(answer, limits)).toString()
  } catch (error) {
    answer.destroy()
    throw error
  }
}

function sendXml(response: ServerResponse, xml: string): void {
  const body = Buffer.from(`<?xml version="1.0" encoding="UTF-8"?>\n${xml}`)
  response.writeHead(200, { 'Content-Type': 'application/xml', 'Content-Length': body.length })
  response.end(body)
}

/** Ends when the object is sent. An answer that is incomplete must not look complete. */
async function streamObject(
  deps: ServeDeps,
  answer: IncomingMessage,
  { response, signal, closed }: Exchange,
  headers: Record<string, string>,
): Promise<void> {
  const length = parseAnswerLength(answer.headers)
  if (length !== undefined) headers['content-length'] = String(length)
  const cut = () => {
    answer.destroy()
    response.destroy()
  }
  const progress = new ProgressTimer(deps.deadlines.stallMs, cut)
  signal.addEventListener('abort', cut, { once: true })
  answer.on('data', (chunk: Buffer) => progress.add(chunk.length))
  answer.once('close', () => {
    if (!answer.complete) cut()
  })
  response.once('close', () => {
    progress.stop()
    if (!answer.readableEnded) answer.destroy()
  })
  response.writeHead(answer.statusCode ?? 502, headers)
  answer.pipe(response)
  await closed
}

function refuse(
  deps: ServeDeps,
  request: IncomingMessage,
  response: ServerResponse,
  error: unknown,
  mount: Mount | undefined,
): void {
  if (!(error instanceof S3ProxyError)) deps.warn(`unexpected error of mount ${mount?.id}: ${describeError(error)}`)
  discardBody(request)
  const internal = new S3ProxyError(500, 'InternalError', 'the proxy failed; try again')
  sendError(response, error instanceof S3ProxyError ? error : internal)
}

const DISCARDED_MAX_BYTES = 64 * 1024 ** 2
const DISCARD_LIMIT_MS = 5_000

/**
 * Reads the rest of the body of a refused request, so that a guest that still sends it sees the answer: closing the
 * connection would discard that. A body that is too long or slow for this ends the connection.
 */
function discardBody(request: IncomingMessage): void {
  if (request.complete || request.destroyed) return
  let bytes = 0
  const timer = setTimeout(() => request.destroy(), DISCARD_LIMIT_MS)
  request.on('data', (chunk: Buffer) => {
    bytes += chunk.length
    if (bytes > DISCARDED_MAX_BYTES) request.destroy()
  })
  request.once('close', () => clearTimeout(timer))
}

/** Without messages of causes, which could quote a header. */
const describeError = (error: unknown): string => (error instanceof Error ? (error.stack ?? error.name) : typeof error)
