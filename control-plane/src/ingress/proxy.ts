/**
 * One request to a sandbox and its answer, streamed both ways: nothing is held here. What the sandbox answers is passed
 * on as it is; our own answers are short pages. What is wrong with an answer, its first line included, is the sandbox's
 * doing and ends as 502: the sandbox is not trusted to speak HTTP.
 */
import { type ClientRequest, type IncomingMessage, request as newRequest, type ServerResponse } from 'node:http'
import type { Duplex } from 'node:stream'
import type { Deps } from '../deps.ts'
import { IngressError } from './error.ts'
import { passedHeaders, requestHeaders } from './headers.ts'
import type { IngressStreams } from './streams.ts'
import { resolveUpstream, type Upstream } from './upstream.ts'
import { mayShare, openOnce, type UpstreamAgent, type UpstreamOptions } from './upstream-agent.ts'
import { validateRequest, validateUpgrade } from './validate-request.ts'

export type Ingress = {
  deps: Deps
  streams: IngressStreams
  upstreams: UpstreamAgent
  isTrusted: (ip: string) => boolean
  /** Throws when the address has asked too often. */
  admit: (request: IncomingMessage) => void
}

export async function proxyRequest(
  ingress: Ingress,
  request: IncomingMessage,
  response: ServerResponse,
  secure: boolean,
): Promise<void> {
  const gone = new AbortController()
  response.once('close', () => gone.abort(new Error('the client went away')))
  try {
    ingress.admit(request)
    const target = validateRequest(request, ingress.deps.ingressAddress.domain)
    const way = await resolveUpstream(ingress.deps, target, gone.signal)
    const headers = requestHeaders(request, secure, ingress.isTrusted)
    const answered = mayShare(request)
      ? await askShared(ingress, request, way, headers, gone.signal)
      : await askAlone(ingress, request, way, headers, gone.signal)
    relay(answered, response)
    ingress.deps.metrics.ingress.requests.inc({ outcome: 'answered' })
  } catch (error) {
    const refusal = asRefusal(ingress, error, gone.signal)
    if (refusal && !response.headersSent) refusal.answer(response)
    else response.destroy()
  }
}

/** 101 and what follows; a sandbox that does not want to is heard as well. */
export async function proxyUpgrade(
  ingress: Ingress,
  request: IncomingMessage,
  socket: Duplex,
  head: Buffer,
  secure: boolean,
): Promise<void> {
  const gone = new AbortController()
  socket.on('error', () => socket.destroy())
  socket.once('close', () => gone.abort(new Error('the client went away')))
  const stopWatching = watchForEnd(socket)
  try {
    ingress.admit(request)
    const target = validateUpgrade(request, ingress.deps.ingressAddress.domain)
    const way = await resolveUpstream(ingress.deps, target, gone.signal)
    const headers = requestHeaders(request, secure, ingress.isTrusted)
    headers.push('Connection', 'Upgrade', 'Upgrade', request.headers.upgrade ?? '')
    const stream = await openOnce(ingress.deps, ingress.streams, way, gone.signal)
    const upstream = newRequest({ ...requestOf(request, headers), createConnection: () => stream })
    upstream.end()
    const { answered, inner, early } = await answerTo(ingress, upstream, { mayUpgrade: true })
    stopWatching()
    const { requests } = ingress.deps.metrics.ingress
    requests.inc({ outcome: inner ? 'upgraded' : 'answered' })
    if (inner === undefined) return relayRefusal(answered, socket)
    const upgrade = ['Connection', 'Upgrade', 'Upgrade', answered.headers.upgrade ?? '']
    socket.write(headOf(answered, upgrade), 'latin1')
    if (early.length > 0) socket.write(early)
    if (head.length > 0) inner.write(head)
    join(socket, inner)
  } catch (error) {
    const refusal = asRefusal(ingress, error, gone.signal)
    if (refusal) socket.end(refusal.render(), () => socket.destroy())
    else socket.destroy()
  }
}

/** Of a connection that nobody reads yet no one would learn that it has ended. What it sends meanwhile stays in it. */
function watchForEnd(socket: Duplex): () => void {
  const look = () => {
    if (socket.readableLength === 0) socket.read()
  }
  const leave = () => socket.destroy()
  socket.on('readable', look).on('end', leave)
  return () => socket.off('readable', look).off('end', leave)
}

/** A kept connection may be closed by the sandbox just as it is used; nothing was answered, so it is asked again. */
async function askShared(
  ingress: Ingress,
  request: IncomingMessage,
  way: Upstream,
  headers: string[],
  gone: AbortSignal,
): Promise<IncomingMessage> {
  for (;;) {
    const options: UpstreamOptions = {
      ...requestOf(request, [...headers, 'Connection', 'keep-alive']),
      agent: ingress.upstreams,
      way,
      gone,
    }
    const upstream = newRequest(options)
    const cut = () => upstream.destroy(new Error('the client went away'))
    gone.addEventListener('abort', cut, { once: true })
    upstream.once('close', () => gone.removeEventListener('abort', cut))
    upstream.end()
    try {
      return (await answerTo(ingress, upstream)).answered
    } catch (error) {
      if (!upstream.reusedSocket || gone.aborted) throw error
    }
  }
}

async function askAlone(
  ingress: Ingress,
  request: IncomingMessage,
  way: Upstream,
  headers: string[],
  gone: AbortSignal,
): Promise<IncomingMessage> {
  const stream = await openOnce(ingress.deps, ingress.streams, way, gone)
  const options = requestOf(request, [...headers, 'Connection', 'close'])
  const upstream = newRequest({ ...options, createConnection: () => stream })
  // A sandbox may answer before it has read everything, and hang up.
  request.pipe(upstream)
  return (await answerTo(ingress, upstream)).answered
}

const requestOf = ({ method = 'GET', url = '/' }: IncomingMessage, headers: string[]) => ({
  method,
  path: url,
  headers,
  setHost: false,
})

type Answered = { answered: IncomingMessage; inner?: Duplex; early: Buffer }

/** What follows an error after it goes to nobody: the answer itself tells of its end. */
async function answerTo(ingress: Ingress, upstream: ClientRequest, { mayUpgrade = false } = {}): Promise<Answered> {
  const { promise, resolve, reject } = Promise.withResolvers<Answered>()
  const hungUp = (cause?: unknown) =>
    reject(
      cause instanceof IngressError ? cause : new IngressError(502, 'The program in this sandbox hung up.', { cause }),
    )
  upstream.on('error', hungUp)
  upstream.once('close', () => hungUp())
  upstream.once('response', (answered) => resolve({ answered, early: Buffer.alloc(0) }))
  upstream.once('upgrade', (answered, inner, early) => {
    if (mayUpgrade) return resolve({ answered, inner, early })
    inner.destroy()
    reject(new IngressError(502, 'The program in this sandbox changed the protocol unasked.'))
  })
  const end = ingress.deps.metrics.ingress.upstream.startTimer()
  const { answered, ...rest } = await promise
  end({ connection: upstream.reusedSocket ? 'kept' : 'new' })
  if (isSpeakable(answered)) return { answered, ...rest }
  upstream.destroy()
  throw new IngressError(502, 'The program in this sandbox does not speak HTTP.')
}

/** What Node would not let us say, and throw at us instead: a status line can hold anything. */
const isSpeakable = ({ statusCode = 0, statusMessage = '' }: IncomingMessage): boolean =>
  statusCode >= 100 && statusCode <= 999 && !/[^\t\x20-\x7e\x80-\xff]/.test(statusMessage)

function relay(answered: IncomingMessage, response: ServerResponse): void {
  const { statusCode = 502, statusMessage = '', rawHeaders, headers } = answered
  response.sendDate = false
  response.writeHead(statusCode, statusMessage, passedHeaders(rawHeaders, headers.connection))
  response.flushHeaders()
  answered.pipe(response)
  // Half an answer must not look like a whole one.
  answered.once('close', () => {
    if (!answered.complete) response.destroy()
  })
}

/** The answer to an upgrade that was not wanted, on a connection that ends with it. */
function relayRefusal(answered: IncomingMessage, socket: Duplex): void {
  socket.write(headOf(answered, ['Connection', 'close']), 'latin1')
  answered.pipe(socket)
  answered.once('close', () => {
    if (!answered.complete) socket.destroy()
  })
}

/** Each direction ends by itself; what breaks on one side is broken off on the other. */
function join(outer: Duplex, inner: Duplex): void {
  outer.pipe(inner)
  inner.pipe(outer)
  inner.on('error', () => outer.destroy())
  inner.once('close', () => outer.destroy())
  outer.once('close', () => inner.destroy())
}

function headOf(answered: IncomingMessage, more: string[]): string {
  const all = [...passedHeaders(answered.rawHeaders, answered.headers.connection), ...more]
  const lines = Array.from({ length: all.length / 2 }, (_, i) => `${all[2 * i]}: ${all[2 * i + 1]}\r\n`)
  return `HTTP/1.1 ${answered.statusCode} ${answered.statusMessage}\r\n${lines.join('')}\r\n`
}

/** Counted here, whatever becomes of it; undefined when there is nobody to tell. */
function asRefusal({ deps }: Ingress, error: unknown, gone: AbortSignal): IngressError | undefined {
  const { requests } = deps.metrics.ingress
  if (gone.aborted) return void requests.inc({ outcome: 'client_gone' })
  if (!(error instanceof IngressError)) deps.log.error({ err: error }, 'unexpected error of the ingress')
  const refusal =
    error instanceof IngressError
      ? error
      : new IngressError(503, 'This sandbox cannot be reached at the moment.', { cause: error })
  requests.inc({ outcome: refusal.outcome })
  return refusal
}
