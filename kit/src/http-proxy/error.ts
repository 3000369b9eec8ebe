/** Responses of the proxy itself: short pages that reveal nothing about what exists behind it. */
import type { ServerResponse } from 'node:http'

export type ProxyOutcome =
  | 'answered'
  | 'upgraded'
  | 'bad_request'
  | 'not_found'
  | 'misdirected'
  | 'rate_limited'
  | 'bad_gateway'
  | 'not_available'
  /** The client disconnected before the response. */
  | 'client_gone'

const STATUSES = {
  400: { title: 'Bad request', outcome: 'bad_request' },
  404: { title: 'Not found', outcome: 'not_found' },
  408: { title: 'Request timeout', outcome: 'bad_request' },
  421: { title: 'Misdirected request', outcome: 'misdirected' },
  429: { title: 'Too many requests', outcome: 'rate_limited' },
  431: { title: 'Request header fields too large', outcome: 'bad_request' },
  502: { title: 'Bad gateway', outcome: 'bad_gateway' },
  503: { title: 'Not available', outcome: 'not_available' },
} as const satisfies Record<number, { title: string; outcome: ProxyOutcome }>

/** Short, because clients wait as long as it says, and what is behind may be available at any moment. */
const RETRY_AFTER_S = 2

export class ProxyError extends Error {
  readonly status: keyof typeof STATUSES
  readonly retryAfterSeconds: number | undefined

  constructor(status: keyof typeof STATUSES, message: string, options?: ErrorOptions & { retryAfterSeconds?: number }) {
    super(message, options)
    this.status = status
    this.retryAfterSeconds = options?.retryAfterSeconds ?? (status === 503 ? RETRY_AFTER_S : undefined)
  }

  get outcome(): ProxyOutcome {
    return STATUSES[this.status].outcome
  }

  send(response: ServerResponse): void {
    const { title } = STATUSES[this.status]
    response.writeHead(this.status, {
      'Content-Type': 'text/html; charset=utf-8',
      'Cache-Control': 'no-store',
      // The rest of a body that is not read would be parsed as the next request.
      ...(this.status === 400 || !response.req.complete ? { Connection: 'close' } : {}),
      ...(this.retryAfterSeconds === undefined ? {} : { 'Retry-After': String(this.retryAfterSeconds) }),
    })
    response.end(`<!doctype html><title>${title}</title><h1>${title}</h1><p>${this.message}</p>\n`)
  }

  /** The response as text, without a page, for a connection that has no response object. */
  render(): string {
    const { title } = STATUSES[this.status]
    const retry = this.retryAfterSeconds === undefined ? '' : `Retry-After: ${this.retryAfterSeconds}\r\n`
    return `HTTP/1.1 ${this.status} ${title}\r\n${retry}Connection: close\r\nContent-Length: 0\r\n\r\n`
  }
}
