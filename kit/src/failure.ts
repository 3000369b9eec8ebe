/** What the services throw when a request cannot be served. The edge renders it; everything between lets it pass. */
import { FAILURE_STATUS, type FailureCode, SERVER_FAULT_STATUS, type ServerFault } from '@warren/protocol'

type Options = {
  cause?: unknown
  /** Seconds a client should wait; clients obey it without a cap, so it stays small (wire 19). */
  retryAfterSeconds?: number
  /** Where the code alone does not decide, e.g. plan_limit is 429 for webhook endpoints. */
  status?: number
}

/** The caller can mend it: 4xx. `data` goes out as it is, so all values are strings. */
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

/** The service or something behind it failed: 5xx. The message goes out, the cause stays in the log. */
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

/** 400 with the field's name as key: `badField({ name: 'must be a DNS label' })`. */
export const badField = (fields: Record<string, string>) => new Failure('validation_failed', fields)

/** Byte-identical for absent and foreign (wire 19). */
export const notFound = (kind: string) => new Failure('not_found', { message: `${kind} not found` })

export const failure = (code: FailureCode, message: string, options?: Options) =>
  new Failure(code, { message }, options)

export const wrongState = (status: string, expected: string) =>
  failure('wrong_state', `sandbox is ${status}, expected ${expected}`)

export const unauthorized = (text: string) => new Failure('unauthorized', { auth: text })

export const unavailable = (message: string, options?: Options) => new Fault('unavailable', message, options)
export const upstreamUnavailable = (message: string, options?: Options) =>
  new Fault('upstream_unavailable', message, options)
