/**
 * Errors as flat bodies: `{ error }`, with further keys only where an answer documents them (docs/gateway.md#errors).
 * They are thrown anywhere and rendered here. Stack traces, SQL and addresses of chain nodes never reach the client.
 */
import { isDatabaseUnreachable, isUnstorableText } from '@warren/kit/postgres/connection'
import type { FastifyError } from 'fastify'
import { validationText } from './validation.ts'

type Options = { cause?: unknown; extra?: Record<string, unknown>; headers?: Record<string, string | number> }

export class GatewayError extends Error {
  override name = 'GatewayError'
  readonly status: number
  readonly extra: Record<string, unknown>
  readonly headers: Record<string, string | number>

  constructor(status: number, text: string, options: Options = {}) {
    super(text, { cause: options.cause })
    this.status = status
    this.extra = options.extra ?? {}
    this.headers = options.headers ?? {}
  }
}

export const badRequest = (field: string, text: string) => new GatewayError(400, `${field}: ${text}`)
export const unauthorized = (text: string) => new GatewayError(401, `Unauthorized: ${text}`)
export const forbidden = () => new GatewayError(403, 'Not authorized for this project')
export const notFound = () => new GatewayError(404, 'Not found')
export const nameTaken = () => new GatewayError(409, 'uniqueName already taken')
export const badGateway = (text: string, cause?: unknown) => new GatewayError(502, text, { cause })
export const tooMany = (text: string, retryAfterSeconds: number, headers: Options['headers'] = {}) =>
  new GatewayError(429, text, { headers: { 'Retry-After': retryAfterSeconds, ...headers } })

export type RenderedError = {
  status: number
  body: { error: string }
  headers: Record<string, string | number>
  /** A bug: logged with its stack. */
  unexpected: boolean
}

export function renderError(error: unknown): RenderedError {
  if (error instanceof GatewayError) {
    const { status, message, extra, headers } = error
    return { status, body: { error: message, ...extra }, headers, unexpected: false }
  }
  if (isDatabaseUnreachable(error)) return plain(500, 'database unreachable', { headers: { 'Retry-After': 1 } })
  if (isUnstorableText(error)) return plain(400, 'text must not contain NUL characters')
  const invalid = validationText(error)
  if (invalid !== undefined) return plain(400, invalid)
  return renderFrameworkError(error)
}

export const isBodyTooLarge = (error: unknown): boolean =>
  (error as Partial<FastifyError>).code === 'FST_ERR_CTP_BODY_TOO_LARGE'

function renderFrameworkError(error: unknown): RenderedError {
  const { code, statusCode, message } = error as Partial<FastifyError>
  if (code === 'FST_ERR_BAD_URL' || code === 'FST_ERR_MAX_PARAM_LENGTH') return plain(404, 'Not found')
  if (isBodyTooLarge(error)) return plain(400, 'body: is larger than this route takes')
  if (typeof statusCode === 'number' && statusCode >= 400 && statusCode < 500) {
    return plain(400, message ?? 'bad request')
  }
  return plain(500, 'internal error', { unexpected: true })
}

const plain = (status: number, error: string, more: Partial<RenderedError> = {}): RenderedError => ({
  status,
  body: { error },
  headers: {},
  unexpected: false,
  ...more,
})
