/** The edge where errors become answers. No stack, SQL or path ever leaves; the log has them. */
import { Failure, Fault } from '@warren/kit/failure'
import type { ErrorEnvelope, FailEnvelope } from '@warren/protocol'
import type { FastifyError } from 'fastify'
import { isDatabaseUnreachable, isUnstorableText } from '../db/connect.ts'
import { validationFields } from './validation.ts'

export type Rendered = {
  status: number
  body: FailEnvelope | ErrorEnvelope
  retryAfterSeconds?: number | undefined
  /** Ours to look at: goes to the log with its stack. */
  unexpected: boolean
}

export function renderError(error: unknown): Rendered {
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
  if (isUnstorableText(error)) return fail(400, refusal({ message: 'text must not contain NUL characters' }))
  const fields = validationFields(error)
  if (fields) return fail(400, { ...fields, code: 'validation_failed' })
  return renderFrameworkError(error)
}

export const isBodyTooLarge = (error: unknown): boolean =>
  (error as Partial<FastifyError>).code === 'FST_ERR_CTP_BODY_TOO_LARGE'

/** What Fastify itself refuses. All of it is the request's fault, and none has a status of its own in the spec. */
function renderFrameworkError(error: unknown): Rendered {
  const { code, statusCode, message } = error as Partial<FastifyError>
  if (isBodyTooLarge(error)) return fail(400, refusal({ body: 'is larger than this route takes' }))
  if (code === 'FST_ERR_BAD_URL') return fail(400, refusal({ url: 'is not a valid path' }))
  if (typeof code === 'string' && code.startsWith('FST_ERR_CTP')) return fail(400, refusal({ body: message ?? code }))
  if (typeof statusCode === 'number' && statusCode >= 400 && statusCode < 500) {
    return fail(400, refusal({ message: message ?? 'bad request' }))
  }
  return { status: 500, body: { status: 'error', message: 'internal error', code: 500 }, unexpected: true }
}

const refusal = (data: Record<string, string>) => ({ ...data, code: 'validation_failed' })

const fail = (
  status: number,
  data: Record<string, string>,
  extra: { retryAfterSeconds?: number | undefined } = {},
): Rendered => ({ status, body: { status: 'fail', data }, unexpected: false, ...extra })
