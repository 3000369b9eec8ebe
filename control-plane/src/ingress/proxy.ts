/**
 * One request to a sandbox and its answer, streamed both ways: nothing is held here. What the sandbox answers is passed
 * on as it is; our own answers are short pages. Each request has a connection of its own into the sandbox.
 */
import { type ClientRequest, type IncomingMessage, request as newRequest, type ServerResponse } from 'node:http'
import type { Duplex } from 'node:stream'
import type { Deps } from '../deps.ts'
import { resetStream } from '../hosts/session.ts'
import { passedHeaders, requestHeaders } from './headers.ts'
import { openTarget, Refusal } from './open.ts'
import type { IngressStreams } from './streams.ts'

/** A client obeys it without a cap, and a sandbox is paused for as long as it is. */
const RETRY_AFTER_S = 2

export type Ingress = { deps: Deps; streams: IngressStreams; isTrusted: (ip: string) => boolean }

export async function proxyRequest(
  ingress: Ingress,
  request: IncomingMessage,
  response: ServerResponse,
  secure: boolean,
): Promise<void> {
  const gone = new AbortController()
  response.once('close', () => gone.abort(new Error('the client went away')))
  try {
    const upstream = await connect(ingress, request, secure, gone.signal)
    // A sandbox may answer before it has read everything, and hang up.
    request.pipe(upstream)
    upstream.on('error', (error) => {
      if (response.headersSent) response.destroy()
      else answer(response, new Refusal(502, 'The program in this sandbox hung up.', { cause: error }))
    })
    upstream.once('response', (answered) => relay(answered, response))
  } catch (error) {
    if (response.destroyed) return
    answer(response, asRefusal(ingress, error))
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
  try {
    const upstream = await connect(ingress, request, secure, gone.signal, request.headers.upgrade)
    upstream.on('error', () => socket.destroy())
    upstream.once('upgrade', (answered, inner, early) => {
      socket.write(headOf(answered, ['Connection', 'Upgrade', 'Upgrade', answered.headers.upgrade ?? '']))
      if (early.length > 0) socket.write(early)
      if (head.length > 0) inner.write(head)
      join(socket, inner)
    })
    upstream.once('response', (answered) => {
      socket.write(headOf(answered, ['Connection', 'close']))
      answered.pipe(socket)
    })
    upstream.end()
  } catch (error) {
    const { status, message } = asRefusal(ingress, error)
    socket.end(`HTTP/1.1 ${status} ${message}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n`)
  }
}

async function connect(
  { deps, streams, isTrusted }: Ingress,
  request: IncomingMessage,
  secure: boolean,
  gone: AbortSignal,
  upgrade?: string,
): Promise<ClientRequest> {
  const { id, stream } = await openTarget(deps, request.headers.host, gone)
  streams.add(id, stream)
  const headers = requestHeaders(request, secure, isTrusted)
  headers.push('Connection', upgrade === undefined ? 'close' : 'Upgrade')
  if (upgrade !== undefined) headers.push('Upgrade', upgrade)
  const upstream = newRequest({
    createConnection: () => stream,
    method: request.method ?? 'GET',
    path: request.url ?? '/',
    headers,
    setHost: false,
  })
  gone.addEventListener('abort', () => resetStream(stream), { once: true })
  return upstream
}

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

function asRefusal({ deps }: Ingress, error: unknown): Refusal {
  if (error instanceof Refusal) return error
  deps.log.error({ err: error }, 'unexpected error of the ingress')
  return new Refusal(503, 'This sandbox cannot be reached at the moment.', { cause: error })
}

const TITLES = { 404: 'Not found', 502: 'Bad gateway', 503: 'Not available' } as const

function answer(response: ServerResponse, { status, message }: Refusal): void {
  const title = TITLES[status]
  response.writeHead(status, {
    'Content-Type': 'text/html; charset=utf-8',
    'Cache-Control': 'no-store',
    ...(status === 503 ? { 'Retry-After': String(RETRY_AFTER_S) } : {}),
  })
  response.end(`<!doctype html><title>${title}</title><h1>${title}</h1><p>${message}</p>\n`)
}
