/** What a guest is answered when the server refuses, fails, or cannot be reached. Pure. */

import { connectionErrorCode, explainConnectionError } from '@warren/kit/outbound/explain-error'
import { HostNotAllowed } from '@warren/kit/outbound/guard'
import type { S3Error } from '@warren/kit/s3/error'
import { S3ProxyError, slowDown } from './error.ts'

export const upstreamTimeout = (): S3ProxyError =>
  new S3ProxyError(504, 'UpstreamTimeout', 'the S3 server did not answer, or made no progress, in time')
export const upstreamInvalid = (cause?: unknown): S3ProxyError =>
  new S3ProxyError(502, 'UpstreamInvalid', 'the answer of the S3 server is not valid', { cause })
export const upstreamFailed = (cause?: unknown): S3ProxyError =>
  new S3ProxyError(502, 'UpstreamError', 'the S3 server failed', { cause })
export const wrongEndpoint = (): S3ProxyError =>
  new S3ProxyError(
    502,
    'WrongEndpoint',
    'the S3 server redirects to another host: register the disk with the endpoint and region of its bucket',
  )

/** Codes for which the answer of a HEAD, or one without XML, has no text. */
const CODE_BY_STATUS: Record<number, string> = {
  403: 'AccessDenied',
  404: 'NotFound',
  409: 'Conflict',
  412: 'PreconditionFailed',
  416: 'InvalidRange',
}

/** The statuses of errors inside of an answer with status 200. */
const STATUS_BY_CODE: Record<string, number> = {
  AccessDenied: 403,
  ConditionalRequestConflict: 409,
  EntityTooSmall: 400,
  InvalidPart: 400,
  InvalidPartOrder: 400,
  NoSuchBucket: 404,
  NoSuchKey: 404,
  NoSuchUpload: 404,
  PreconditionFailed: 412,
  SlowDown: 503,
}

export const statusOfCode = (code: string): number => STATUS_BY_CODE[code] ?? 500

/** Of an answer with status 400 or higher. */
export function explainRefusal(status: number, error: S3Error | undefined): S3ProxyError {
  const code = error?.code ?? CODE_BY_STATUS[status]
  if (code === 'RequestTimeout' || status === 408) return upstreamTimeout()
  if (status === 503 || status === 429 || code === 'SlowDown') return slowDown('the S3 server is busy')
  if (status === 501) {
    return new S3ProxyError(501, 'NotImplemented', 'the S3 server does not support this operation or condition')
  }
  if (status >= 500) return upstreamFailed()
  // 401 means here that the guest has no mount.
  const forwarded = status === 401 ? 403 : status in CODE_BY_STATUS ? status : 400
  return new S3ProxyError(forwarded, code ?? 'UpstreamRefused', `the S3 server refused the request (${code ?? status})`)
}

/** Of a connection that was not established, or ended before an answer. Throws what is neither, which is a fault of this process. */
export function explainFailure(error: Error): S3ProxyError {
  if (error instanceof S3ProxyError) return error
  if (error instanceof HostNotAllowed) {
    return new S3ProxyError(403, 'EndpointRefused', 'the endpoint of the disk is at an address that is not allowed')
  }
  const code = connectionErrorCode(error)
  if (code === '') throw error
  if (code.startsWith('HPE_')) return upstreamInvalid(error)
  if (CLOSED_CODES.has(code)) return upstreamFailed(error)
  const reason = explainConnectionError(error, 'S3 server')
  return new S3ProxyError(502, 'UpstreamUnreachable', `the S3 server cannot be reached: ${reason}`, { cause: error })
}

const CLOSED_CODES: ReadonlySet<string> = new Set(['ECONNRESET', 'EPIPE', 'ECONNABORTED'])
