/**
 * One attempt of a delivery: a signed POST. Success is any 2xx. Redirects are not followed, because they would lead around the
 * check of the address. The response's head decides; of its body only a little is read, so that the connection can be used
 * again.
 */
import http from 'node:http'
import https from 'node:https'
import { explainConnectionError } from '@warren/kit/outbound/explain-error'
import { HostNotAllowed, hostnameOf, type OutboundGuard } from '@warren/kit/outbound/guard'
import { VERSION } from '@warren/kit/version'
import {
  WEBHOOK_DELIVERY_HEADER,
  WEBHOOK_EVENT_HEADER,
  WEBHOOK_SIGNATURE_HEADER,
  WEBHOOK_TIMEOUT_MS,
  WEBHOOK_TIMESTAMP_HEADER,
} from '@warren/protocol'
import { signWebhook } from './sign.ts'

/** Names no address: what a private name resolves to is not for the user to learn. */
export const NOT_ALLOWED = 'the host is or resolves to an address to which webhooks are not sent'

/** A response of a receiver has no meaning beyond its status. */
const BODY_MAX_BYTES = 16 * 1024
const IDLE_CONNECTION_MS = 5_000
const IDLE_CONNECTIONS_MAX = 64

export type Message = {
  url: string
  secret: string
  /** The receiver belongs to the local user of a single machine. */
  allowLoopback: boolean
  delivery: string
  action: string
  body: string
}

type Outcome = { error: string | undefined; isStale?: boolean }

/** Errors of a connection that the other side has closed. */
const STALE_CODES: ReadonlySet<string> = new Set(['ECONNRESET', 'EPIPE'])

export type Sender = {
  /** The error of the attempt, or undefined if it was delivered. Never throws. */
  send(message: Message, now: Date): Promise<string | undefined>
  /** Ends the attempts that are open; they fail. */
  abort(): void
  close(): void
}

export function createSender(targets: OutboundGuard, timeoutMs = WEBHOOK_TIMEOUT_MS): Sender {
  const open = new Set<http.ClientRequest>()
  let isAborted = false
  const agents = [false, true].map((allowLoopback) => createAgents(targets, allowLoopback))

  /** `isStale`: the receiver had closed a connection of an earlier request, probably before it saw this one. */
  function attempt(url: URL, message: Message, now: Date, agent: http.Agent): Promise<Outcome> {
    const { promise, resolve } = Promise.withResolvers<Outcome>()
    const request = (url.protocol === 'https:' ? https : http).request({
      method: 'POST',
      hostname: hostnameOf(url),
      port: url.port,
      path: url.pathname + url.search,
      headers: headersOf(message, now),
      agent,
    })
    // A timer instead of an AbortSignal, which costs several objects for each attempt. It also ends a slow response body.
    const timer = setTimeout(() => {
      resolve({ error: `no response within ${timeoutMs / 1000} s` })
      request.destroy()
    }, timeoutMs)
    open.add(request)
    request.on('close', () => {
      clearTimeout(timer)
      open.delete(request)
      resolve({ error: 'the receiver closed the connection' }) // Without effect if the result is known.
    })
    request.on('error', (error: NodeJS.ErrnoException) => {
      const isStale = request.reusedSocket && STALE_CODES.has(error.code ?? '')
      resolve({ error: explainError(error), isStale })
    })
    request.on('response', (response) => {
      discardBody(response)
      resolve({ error: explainStatus(response.statusCode ?? 0) })
    })
    request.end(message.body)
    return promise
  }

  return {
    async send(message, now) {
      const url = URL.parse(message.url)
      if (!url) return 'the URL is not valid'
      if (!targets.isAllowedHost(hostnameOf(url), message.allowLoopback)) return NOT_ALLOWED
      const scheme = url.protocol === 'https:' ? 'https' : 'http'
      const kept = agents[Number(message.allowLoopback)]!
      const outcome = await attempt(url, message, now, kept[scheme])
      if (!outcome.isStale || isAborted) return outcome.error
      return (await attempt(url, message, now, kept[`${scheme}Once`])).error
    },
    abort() {
      isAborted = true
      for (const request of open) request.destroy()
    },
    close() {
      for (const one of agents) for (const agent of Object.values(one)) agent.destroy()
    },
  }
}

/** Separate for receivers that may be on loopback: a connection that one may use must not be found by another. */
function createAgents(targets: OutboundGuard, allowLoopback: boolean) {
  const lookup = targets.lookup(allowLoopback)
  const options = {
    keepAlive: true,
    timeout: IDLE_CONNECTION_MS,
    maxFreeSockets: IDLE_CONNECTIONS_MAX,
    scheduling: 'lifo',
    lookup,
  } as const
  return {
    http: new http.Agent(options),
    https: new https.Agent(options),
    /** For a second attempt, which must not find another closed connection. */
    httpOnce: new http.Agent({ lookup }),
    httpsOnce: new https.Agent({ lookup }),
  }
}

function headersOf({ secret, delivery, action, body }: Message, now: Date): http.OutgoingHttpHeaders {
  const timestamp = Math.floor(now.getTime() / 1000)
  return {
    'Content-Type': 'application/json',
    'Content-Length': Buffer.byteLength(body),
    'User-Agent': `Warren-Webhooks/${VERSION}`,
    [WEBHOOK_TIMESTAMP_HEADER]: String(timestamp),
    [WEBHOOK_SIGNATURE_HEADER]: signWebhook(secret, timestamp, body),
    [WEBHOOK_DELIVERY_HEADER]: delivery,
    [WEBHOOK_EVENT_HEADER]: action,
  }
}

function discardBody(response: http.IncomingMessage): void {
  let bytes = 0
  response.on('error', () => {}) // The status has been received, which is all that counts.
  response.on('data', (chunk: Buffer) => {
    bytes += chunk.length
    if (bytes > BODY_MAX_BYTES) response.destroy()
  })
}

function explainStatus(status: number): string | undefined {
  if (status >= 200 && status < 300) return undefined
  return status >= 300 && status < 400 ? `HTTP ${status}: redirects are not followed` : `HTTP ${status}`
}

const explainError = (error: Error): string =>
  error instanceof HostNotAllowed ? NOT_ALLOWED : explainConnectionError(error, 'receiver')
