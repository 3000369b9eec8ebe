/** Errors for requests that cannot be served. They are thrown anywhere and rendered at the edge of the service. */
import { FAILURE_STATUS, type FailureCode, SERVER_FAULT_STATUS, type ServerFault } from '@warren/protocol'

type Options = {
  cause?: unknown
  /** Seconds that a client should wait. Clients follow any value, so it must be small. */
  retryAfterSeconds?: number
  /** Overrides the status of the code, for an endpoint whose contract has another one. */
  status?: number
}

/** The request has to change: 4xx. `data` is sent to the client unchanged. */
export class Failure extends Error {
  readonly code: FailureCode
  readonly status: number
  readonly data: Record<string, string>
  readonly retryAfterSeconds: number | undefined

  constructor(code: FailureCode, data: Record<string, string>, options: Options = {}) {
    super(Object.values(data)[0] ?? code, { cause: options.cause })
    this.name = 'Failure'
    this.code = code
    this.status = options.status ?? FAILURE_STATUS[code]
    this.data = { ...data, code }
    this.retryAfterSeconds = options.retryAfterSeconds
  }
}

/** The service or one of its dependencies failed: 5xx. The client gets the message; the cause is only logged. */
export class Fault extends Error {
  readonly status: number
  readonly data: Record<string, unknown> | undefined
  readonly retryAfterSeconds: number | undefined

  constructor(kind: ServerFault, message: string, options: Options & { data?: Record<string, unknown> } = {}) {
    super(message, { cause: options.cause })
    this.name = 'Fault'
    this.status = options.status ?? SERVER_FAULT_STATUS[kind]
    this.data = options.data
    this.retryAfterSeconds = options.retryAfterSeconds
  }
}

/** 400 with the name of the field as key: `badField({ name: 'must be a DNS label' })`. */
export const badField = (fields: Record<string, string>) => new Failure('validation_failed', fields)

/** The same for a missing resource and for one of another user, so that ids cannot be probed. */
export const notFound = (kind: string) => new Failure('not_found', { message: `${kind} not found` })

export const failure = (code: FailureCode, message: string, options?: Options) =>
  new Failure(code, { message }, options)

export const wrongState = (status: string, expected: string) =>
  failure('wrong_state', `sandbox is ${status}, expected ${expected}`)

export const unauthorized = (text: string) => new Failure('unauthorized', { auth: text })

export const unavailable = (message: string, options?: Options) => new Fault('unavailable', message, options)
export const upstreamUnavailable = (message: string, options?: Options) =>
  new Fault('upstream_unavailable', message, options)
