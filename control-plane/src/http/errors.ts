/**
 * Renders errors as responses (docs/api.md#errors). Stack traces, SQL and file paths never reach the client; the log has
 * them.
 */
import { Failure, Fault } from '@warren/kit/failure'
import { isDatabaseUnreachable, isUnstorableText } from '@warren/kit/postgres/connection'
import type { ErrorEnvelope, FailEnvelope } from '@warren/protocol'
import type { FastifyError } from 'fastify'
import { validationFields } from './validation.ts'

export type RenderedError = {
  status: number
  body: FailEnvelope | ErrorEnvelope
  retryAfterSeconds?: number | undefined
  /** A bug: logged with its stack. */
  unexpected: boolean
}

export function renderError(error: unknown): RenderedError {
  if (error instanceof Failure) {
    return fail(error.status, error.data, { retryAfterSeconds: error.retryAfterSeconds })
  }
  if (error instanceof Fault) {
    return {
      status: error.status,
      body: {
        status: 'error',
        message: error.message,
        code: error.status,
        ...(error.data ? { data: error.data } : {}),
      },
      retryAfterSeconds: error.retryAfterSeconds,
      unexpected: false,
    }
  }
  if (isDatabaseUnreachable(error)) {
    const body = { status: 'error' as const, message: 'database unreachable', code: 503 }
    return { status: 503, body, retryAfterSeconds: 1, unexpected: false }
  }
  if (isUnstorableText(error)) return fail(400, invalid({ message: 'text must not contain NUL characters' }))
  const fields = validationFields(error)
  if (fields) return fail(400, { ...fields, code: 'validation_failed' })
  return renderFrameworkError(error)
}

export const isBodyTooLarge = (error: unknown): boolean =>
  (error as Partial<FastifyError>).code === 'FST_ERR_CTP_BODY_TOO_LARGE'

/** Renders what Fastify itself rejects: all of it is the client's fault and has the same status, 400. */
function renderFrameworkError(error: unknown): RenderedError {
  const { code, statusCode, message } = error as Partial<FastifyError>
  if (isBodyTooLarge(error)) return fail(400, invalid({ body: 'is larger than this route takes' }))
  if (code === 'FST_ERR_BAD_URL') return fail(400, invalid({ url: 'is not a valid path' }))
  if (typeof code === 'string' && code.startsWith('FST_ERR_CTP')) return fail(400, invalid({ body: message ?? code }))
  if (typeof statusCode === 'number' && statusCode >= 400 && statusCode < 500) {
    return fail(400, invalid({ message: message ?? 'bad request' }))
  }
  return { status: 500, body: { status: 'error', message: 'internal error', code: 500 }, unexpected: true }
}

const invalid = (data: Record<string, string>) => ({ ...data, code: 'validation_failed' })

const fail = (
  status: number,
  data: Record<string, string>,
  extra: { retryAfterSeconds?: number | undefined } = {},
): RenderedError => ({ status, body: { status: 'fail', data }, unexpected: false, ...extra })
