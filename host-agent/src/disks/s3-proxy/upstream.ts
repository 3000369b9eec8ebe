/**
 * Sends requests to S3 servers: signed, to addresses that are allowed, with deadlines.
 *
 * A request whose body is in memory and that is safe to repeat is sent up to three times, with a pause that grows, if the
 * connection fails or the server answers 500, 502, 503 or 504. It is signed anew each time. It is also sent again when the
 * server names another region (`auto` only), and when it redirects to the same target (redirect.ts). A body that is streamed is
 * gone after the first attempt.
 */
import http from 'node:http'
import https from 'node:https'
import type { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { HostNotAllowed, type OutboundGuard } from '@warren/kit/outbound/guard'
import { findExpectedRegion, parseS3Error, S3_ERROR_MAX_BYTES, type S3Error } from '@warren/kit/s3/error'
import { EMPTY_PAYLOAD_SHA256, sha256Hex, signS3Request, UNSIGNED_PAYLOAD } from '@warren/kit/s3/sign'
import { S3ProxyError } from './error.ts'
import { type Deadlines, LIMITS } from './limits.ts'
import type { Mount } from './mounts.ts'
import type { Outgoing } from './outgoing.ts'
import { ProgressTimer, readAll } from './progress.ts'
import { followRedirect } from './redirect.ts'
import {
  explainFailure,
  explainRefusal,
  upstreamFailed,
  upstreamInvalid,
  upstreamTimeout,
  wrongEndpoint,
} from './upstream-error.ts'

const REPEATS = 2
const REDIRECTS = 2
const PAUSE_MS = 100
const REPEATED_STATUSES: ReadonlySet<number> = new Set([500, 502, 503, 504])
const REPEATED_CODES: ReadonlySet<string> = new Set(['UpstreamUnreachable', 'UpstreamError'])
/** Shorter than the time after which servers close idle connections. */
const IDLE_MS = 4_000
const DISCARD_LIMIT_MS = 5_000

/** A stream has a length, because S3 servers need it. */
export type Body = Buffer | { stream: Readable; length: number }

export type Sending = {
  mount: Mount
  outgoing: Outgoing
  body: Body
  isRepeatable: boolean
  /** Until the head of the answer has arrived, over all attempts. */
  answerMs: number
  /** The guest is gone, or the mount was removed. */
  signal: AbortSignal
}

export class Upstream {
  readonly #guard: OutboundGuard
  readonly #deadlines: Deadlines
  readonly #agents: { http: http.Agent; https: https.Agent }[]
  readonly #onLatency: (seconds: number) => void

  /** `onLatency`: from the begin of an attempt until the head of its answer. */
  constructor(guard: OutboundGuard, deadlines: Deadlines, onLatency: (seconds: number) => void) {
    this.#guard = guard
    this.#onLatency = onLatency
    this.#deadlines = deadlines
    // Separate: a connection to loopback that one mount may use must not be found by another.
    this.#agents = [false, true].map((allowLoopback) => createAgents(guard, allowLoopback))
  }

  /** The answer of the server if its status is below 400; otherwise throws what the guest is answered. */
  async send(sending: Sending): Promise<http.IncomingMessage> {
    const { mount, body, signal } = sending
    const giveUpAt = performance.now() + sending.answerMs
    const canSendAgain = Buffer.isBuffer(body)
    let repeats = canSendAgain && sending.isRepeatable ? REPEATS : 0
    let redirects = canSendAgain ? REDIRECTS : 0
    let canChangeRegion = canSendAgain && !mount.isRegionFixed
    let { outgoing } = sending
    for (;;) {
      const region = mount.region
      const outcome = await this.#attempt({ ...sending, outgoing }, giveUpAt).catch((error: Error) =>
        explainFailure(error),
      )
      if (signal.aborted) throw upstreamFailed(signal.reason)
      let failure: S3ProxyError
      let isPassing: boolean
      if (outcome instanceof S3ProxyError) {
        failure = outcome
        isPassing = REPEATED_CODES.has(outcome.code)
      } else {
        const { statusCode: status = 0 } = outcome
        if (status < 300 || status === 304) return outcome
        if (status < 400) {
          discard(outcome)
          const path = followRedirect(mount.bucket, outgoing.path, outcome.headers.location)
          if (path === undefined || redirects-- <= 0) throw wrongEndpoint()
          outgoing = { ...outgoing, path }
          continue
        }
        const error = await this.#readError(outcome, outgoing.method)
        const expected = findExpectedRegion(outcome.headers, error)
        if (canChangeRegion && expected !== undefined && expected !== region) {
          mount.region = expected
          canChangeRegion = false
          continue
        }
        failure = explainRefusal(status, error)
        isPassing = REPEATED_STATUSES.has(status)
      }
      const pauseMs = PAUSE_MS * 4 ** (REPEATS - repeats) * (0.5 + Math.random())
      if (!isPassing || repeats-- === 0 || performance.now() + pauseMs > giveUpAt) throw failure
      await sleep(pauseMs, undefined, { signal }).catch(() => {})
    }
  }

  async #attempt({ mount, outgoing, body, signal }: Sending, giveUpAt: number): Promise<http.IncomingMessage> {
    const { bucket, allowLoopback } = mount
    if (!this.#guard.isAllowedHost(bucket.hostname, allowLoopback)) throw new HostNotAllowed()
    const headers = { ...outgoing.headers, host: bucket.host }
    const payload = { headers, payloadHash: hashOf(body) }
    const signed = signS3Request(mount.credentials, mount.region, { ...outgoing, ...payload }, new Date())
    const { length } = body
    const hasLength = length > 0 || ['PUT', 'POST'].includes(outgoing.method)

    const startedAt = performance.now()
    const { promise, resolve, reject } = Promise.withResolvers<http.IncomingMessage>()
    const scheme = bucket.endpoint.isSecure ? 'https' : 'http'
    const request = (scheme === 'https' ? https : http).request({
      method: outgoing.method,
      hostname: bucket.hostname,
      port: bucket.endpoint.port,
      path: signed.target,
      headers: { ...signed.headers, ...(hasLength ? { 'content-length': length } : {}) },
      agent: this.#agents[Number(allowLoopback)]![scheme],
      setHost: false,
    })
    const fail = (error: Error) => {
      reject(error)
      request.destroy()
    }
    const abort = () => fail(upstreamFailed(signal.reason))
    if (signal.aborted) abort()
    signal.addEventListener('abort', abort)
    const stopTimers = this.#watch(request, body, Math.max(1, giveUpAt - performance.now()), fail)
    request.on('error', fail)
    request.once('close', () => {
      stopTimers()
      signal.removeEventListener('abort', abort)
      fail(upstreamFailed())
    })
    request.once('response', (response) => {
      this.#onLatency((performance.now() - startedAt) / 1000)
      stopTimers()
      response.on('error', () => {}) // Reported by `close` and `complete` to the reader.
      const isEarly = !request.writableFinished
      if (isEarly && !Buffer.isBuffer(body)) body.stream.unpipe(request)
      // Its connection cannot be used again, and would stay open: the server waits for the rest of the body.
      if (isEarly) response.once('close', () => request.destroy())
      // A server that accepts an upload before it has it cannot have stored it.
      if (isEarly && (response.statusCode ?? 0) < 400) fail(upstreamInvalid())
      else resolve(response)
    })
    request.once('upgrade', () => fail(upstreamInvalid()))
    if (Buffer.isBuffer(body)) request.end(body)
    else body.stream.pipe(request)
    return promise
  }

  /** The deadlines until an answer begins. Those of a streamed body depend on its progress. */
  #watch(request: http.ClientRequest, body: Body, limitMs: number, fail: (error: Error) => void): () => void {
    const timers: NodeJS.Timeout[] = []
    const onTime = (ms: number, error: () => Error) => timers.push(setTimeout(() => fail(error()), ms))
    request.once('socket', (socket) => {
      if (!socket.connecting) return
      const connect = setTimeout(
        () => fail(Object.assign(new Error('connect timed out'), { code: 'ETIMEDOUT' })),
        Math.min(this.#deadlines.connectMs, limitMs),
      )
      timers.push(connect)
      socket.once('connect', () => clearTimeout(connect))
    })
    if (Buffer.isBuffer(body)) {
      onTime(limitMs, upstreamTimeout)
      return () => timers.forEach(clearTimeout)
    }
    const { stream } = body
    const progress = new ProgressTimer(this.#deadlines.stallMs, () =>
      fail(
        request.writableNeedDrain
          ? upstreamTimeout()
          : new S3ProxyError(408, 'RequestTimeout', 'the body of the request made no progress'),
      ),
    )
    const count = (chunk: Buffer) => progress.add(chunk.length)
    stream.on('data', count)
    request.once('finish', () => {
      progress.stop()
      onTime(limitMs, upstreamTimeout)
    })
    return () => {
      stream.off('data', count)
      progress.stop()
      timers.forEach(clearTimeout)
    }
  }

  async #readError(response: http.IncomingMessage, method: string): Promise<S3Error | undefined> {
    if (method === 'HEAD') {
      discard(response)
      return undefined
    }
    const limits = { maxBytes: S3_ERROR_MAX_BYTES, limitMs: this.#deadlines.stallMs }
    const failed = upstreamFailed()
    // An error whose text is cut or too long is still an error with this status.
    const text = await readAll(response, { ...limits, tooLong: failed, tooSlow: failed }).catch(() => undefined)
    if (text === undefined) response.destroy()
    return text === undefined ? undefined : parseS3Error(text.toString())
  }
}

function createAgents(guard: OutboundGuard, allowLoopback: boolean): { http: http.Agent; https: https.Agent } {
  const options = {
    keepAlive: true,
    timeout: IDLE_MS,
    maxFreeSockets: LIMITS.requests,
    scheduling: 'lifo',
    lookup: guard.lookup(allowLoopback),
  } as const
  return { http: new http.Agent(options), https: new https.Agent(options) }
}

/** A streamed body is protected by the digest that its guest must send. */
function hashOf(body: Body): string {
  if (!Buffer.isBuffer(body)) return UNSIGNED_PAYLOAD
  return body.length === 0 ? EMPTY_PAYLOAD_SHA256 : sha256Hex(body)
}

/** Reads the rest of a short answer, so that its connection can be used again. */
export function discard(response: http.IncomingMessage): void {
  let bytes = 0
  const timer = setTimeout(() => response.destroy(), DISCARD_LIMIT_MS)
  response.on('data', (chunk: Buffer) => {
    bytes += chunk.length
    if (bytes > S3_ERROR_MAX_BYTES) response.destroy()
  })
  response.once('close', () => clearTimeout(timer))
}
