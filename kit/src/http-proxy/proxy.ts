/**
 * Forwards one request to a backend and streams its response back; neither is buffered. Responses of the backend pass
 * unchanged, errors of the proxy are short pages (error.ts). The backend is not trusted to send valid HTTP: whatever is
 * wrong with its response, the status line included, becomes a 502.
 */
import { type ClientRequest, type IncomingMessage, request as newRequest, type ServerResponse } from 'node:http'
import type { Duplex } from 'node:stream'
import type { Log } from '../log.ts'
import type { Backend, ProxyObserver } from './backend.ts'
import { ProxyError } from './error.ts'
import { forwardedHeaders, requestHeaders } from './headers.ts'
import {
  mayReuseConnection,
  openDedicatedConnection,
  type UpstreamAgent,
  type UpstreamRequestOptions,
} from './upstream-agent.ts'
import { validateRequest, validateUpgrade } from './validate-request.ts'

export type HttpProxy<Target, Upstream> = {
  backend: Backend<Target, Upstream>
  observer: ProxyObserver
  log: Pick<Log, 'error'>
  upstreams: UpstreamAgent<Upstream>
  isTrustedProxy: (ip: string) => boolean
  /** Throws if the client's address has sent too many requests. */
  checkRateLimit: (request: IncomingMessage) => void
}

export async function proxyRequest<Target, Upstream>(
  proxy: HttpProxy<Target, Upstream>,
  request: IncomingMessage,
  response: ServerResponse,
  secure: boolean,
): Promise<void> {
  const disconnected = new AbortController()
  response.once('close', () => disconnected.abort(new Error('the client disconnected')))
  const { signal } = disconnected
  try {
    proxy.checkRateLimit(request)
    const target = validateRequest(request, proxy.backend)
    const upstream = await proxy.backend.resolve(target, signal)
    const headers = requestHeaders(request, secure, proxy.isTrustedProxy)
    const upstreamResponse = mayReuseConnection(request)
      ? await sendOnPooledConnection(proxy, request, upstream, headers, signal)
      : await sendOnDedicatedConnection(proxy, request, upstream, headers, signal)
    relayResponse(upstreamResponse, response)
    proxy.observer.countRequest('answered')
  } catch (error) {
    const known = recordError(proxy, error, signal)
    if (known && !response.headersSent) known.send(response)
    else response.destroy()
  }
}

/** Forwards an upgrade request. If the backend declines the upgrade, its ordinary response is passed on. */
export async function proxyUpgrade<Target, Upstream>(
  proxy: HttpProxy<Target, Upstream>,
  request: IncomingMessage,
  socket: Duplex,
  head: Buffer,
  secure: boolean,
): Promise<void> {
  const disconnected = new AbortController()
  socket.on('error', () => socket.destroy())
  socket.once('close', () => disconnected.abort(new Error('the client disconnected')))
  const { signal } = disconnected
  const stopWatching = destroyOnEnd(socket)
  try {
    proxy.checkRateLimit(request)
    const target = validateUpgrade(request, proxy.backend)
    const upstream = await proxy.backend.resolve(target, signal)
    const headers = requestHeaders(request, secure, proxy.isTrustedProxy)
    headers.push('Connection', 'Upgrade', 'Upgrade', request.headers.upgrade ?? '')
    const stream = await openDedicatedConnection(proxy.backend, upstream, signal)
    const upstreamRequest = newRequest({ ...requestOptions(request, headers), createConnection: () => stream })
    upstreamRequest.end()
    const { response, upgraded, upgradedHead } = await responseTo(proxy, upstreamRequest, { mayUpgrade: true })
    stopWatching()
    proxy.observer.countRequest(upgraded ? 'upgraded' : 'answered')
    if (upgraded === undefined) return relayDeclinedUpgrade(response, socket)
    const upgradeHeaders = ['Connection', 'Upgrade', 'Upgrade', response.headers.upgrade ?? '']
    socket.write(renderHead(response, upgradeHeaders), 'latin1')
    if (upgradedHead.length > 0) socket.write(upgradedHead)
    if (head.length > 0) upgraded.write(head)
    joinConnections(socket, upgraded)
  } catch (error) {
    const known = recordError(proxy, error, signal)
    if (known) socket.end(known.render(), () => socket.destroy())
    else socket.destroy()
  }
}

/**
 * Notices that the client closes the connection while it is not read yet. Bytes that the client sends meanwhile stay in
 * the socket's buffer.
 */
function destroyOnEnd(socket: Duplex): () => void {
  const onReadable = () => {
    if (socket.readableLength === 0) socket.read()
  }
  const onEnd = () => socket.destroy()
  socket.on('readable', onReadable).on('end', onEnd)
  return () => socket.off('readable', onReadable).off('end', onEnd)
}

/**
 * The backend may close a pooled connection just as it is reused. In that case there was no response, and the request is
 * sent again.
 */
async function sendOnPooledConnection<Target, Upstream>(
  proxy: HttpProxy<Target, Upstream>,
  request: IncomingMessage,
  upstream: Upstream,
  headers: string[],
  clientSignal: AbortSignal,
): Promise<IncomingMessage> {
  for (;;) {
    const options: UpstreamRequestOptions<Upstream> = {
      ...requestOptions(request, [...headers, 'Connection', 'keep-alive']),
      agent: proxy.upstreams,
      upstream,
      clientSignal,
    }
    const upstreamRequest = newRequest(options)
    const abort = () => upstreamRequest.destroy(new Error('the client disconnected'))
    clientSignal.addEventListener('abort', abort, { once: true })
    upstreamRequest.once('close', () => clientSignal.removeEventListener('abort', abort))
    upstreamRequest.end()
    try {
      return (await responseTo(proxy, upstreamRequest)).response
    } catch (error) {
      if (!upstreamRequest.reusedSocket || clientSignal.aborted) throw error
    }
  }
}

async function sendOnDedicatedConnection<Target, Upstream>(
  proxy: HttpProxy<Target, Upstream>,
  request: IncomingMessage,
  upstream: Upstream,
  headers: string[],
  clientSignal: AbortSignal,
): Promise<IncomingMessage> {
  const stream = await openDedicatedConnection(proxy.backend, upstream, clientSignal)
  const options = requestOptions(request, [...headers, 'Connection', 'close'])
  const upstreamRequest = newRequest({ ...options, createConnection: () => stream })
  // `pipe` and not `pipeline`: a server may respond before it has read the whole body, and close the connection.
  request.pipe(upstreamRequest)
  return (await responseTo(proxy, upstreamRequest)).response
}

const requestOptions = ({ method = 'GET', url = '/' }: IncomingMessage, headers: string[]) => ({
  method,
  path: url,
  headers,
  setHost: false,
})

/** `upgraded` is the connection after a 101, and `upgradedHead` the bytes that came together with the 101. */
type UpstreamResponse = { response: IncomingMessage; upgraded?: Duplex; upgradedHead: Buffer }

async function responseTo<Target, Upstream>(
  { backend, observer }: HttpProxy<Target, Upstream>,
  upstreamRequest: ClientRequest,
  { mayUpgrade = false } = {},
): Promise<UpstreamResponse> {
  const { promise, resolve, reject } = Promise.withResolvers<UpstreamResponse>()
  const fail = (cause?: unknown) =>
    reject(cause instanceof ProxyError ? cause : new ProxyError(502, backend.messages.closed, { cause }))
  // Stays attached: an error after the response has begun needs a listener. The response's own `close` reports it.
  upstreamRequest.on('error', fail)
  upstreamRequest.once('close', () => fail())
  upstreamRequest.once('response', (response) => resolve({ response, upgradedHead: Buffer.alloc(0) }))
  upstreamRequest.once('upgrade', (response, upgraded, upgradedHead) => {
    if (mayUpgrade) return resolve({ response, upgraded, upgradedHead })
    upgraded.destroy()
    reject(new ProxyError(502, backend.messages.invalid))
  })
  const stopTimer = observer.startUpstream()
  const { response, ...rest } = await promise
  stopTimer(upstreamRequest.reusedSocket ? 'kept' : 'new')
  if (hasValidStatusLine(response)) return { response, ...rest }
  upstreamRequest.destroy()
  throw new ProxyError(502, backend.messages.invalid)
}

/** Node's parser accepts status lines that its own `writeHead` throws on. */
const hasValidStatusLine = ({ statusCode = 0, statusMessage = '' }: IncomingMessage): boolean =>
  statusCode >= 100 && statusCode <= 999 && !/[^\t\x20-\x7e\x80-\xff]/.test(statusMessage)

function relayResponse(upstreamResponse: IncomingMessage, response: ServerResponse): void {
  const { statusCode = 502, statusMessage = '', rawHeaders, headers } = upstreamResponse
  response.sendDate = false
  response.writeHead(statusCode, statusMessage, forwardedHeaders(rawHeaders, headers.connection))
  response.flushHeaders()
  upstreamResponse.pipe(response)
  // An incomplete response must not look complete.
  upstreamResponse.once('close', () => {
    if (!upstreamResponse.complete) response.destroy()
  })
}

/** The connection ends with the response, because it was handed over for an upgrade and has no HTTP parser any more. */
function relayDeclinedUpgrade(upstreamResponse: IncomingMessage, socket: Duplex): void {
  socket.write(renderHead(upstreamResponse, ['Connection', 'close']), 'latin1')
  upstreamResponse.pipe(socket)
  upstreamResponse.once('close', () => {
    if (!upstreamResponse.complete) socket.destroy()
  })
}

/** Each direction can end separately. An error or close on one side destroys the other. */
function joinConnections(outer: Duplex, inner: Duplex): void {
  outer.pipe(inner)
  inner.pipe(outer)
  inner.on('error', () => outer.destroy())
  inner.once('close', () => outer.destroy())
  outer.once('close', () => inner.destroy())
}

function renderHead(response: IncomingMessage, more: string[]): string {
  const all = [...forwardedHeaders(response.rawHeaders, response.headers.connection), ...more]
  const lines = Array.from({ length: all.length / 2 }, (_, i) => `${all[2 * i]}: ${all[2 * i + 1]}\r\n`)
  return `HTTP/1.1 ${response.statusCode} ${response.statusMessage}\r\n${lines.join('')}\r\n`
}

/** Counts the error and returns what to send; undefined when the client has disconnected. */
function recordError<Target, Upstream>(
  { backend, observer, log }: HttpProxy<Target, Upstream>,
  error: unknown,
  clientSignal: AbortSignal,
): ProxyError | undefined {
  if (clientSignal.aborted) return void observer.countRequest('client_gone')
  if (!(error instanceof ProxyError)) log.error({ err: error }, 'unexpected error in the proxy')
  const known =
    error instanceof ProxyError ? error : new ProxyError(503, backend.messages.unreachable, { cause: error })
  observer.countRequest(known.outcome)
  return known
}
