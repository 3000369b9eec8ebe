/** Errors that the S3 proxy answers with (docs/disk-protocol.md#errors). Messages are our own: those of servers can have secrets. */
import type { ServerResponse } from 'node:http'
import { escapeXml } from '@warren/kit/s3/xml'

export class S3ProxyError extends Error {
  override name = 'S3ProxyError'
  readonly status: number
  readonly code: string

  constructor(status: number, code: string, message: string, options?: ErrorOptions) {
    super(message, options)
    this.status = status
    this.code = code
  }
}

export const invalidRequest = (message: string): S3ProxyError => new S3ProxyError(400, 'InvalidRequest', message)

export const slowDown = (message: string): S3ProxyError => new S3ProxyError(503, 'SlowDown', message)

/** Sends nothing if an answer has begun: then only a cut connection can tell the guest. */
export function sendError(response: ServerResponse, { status, code, message }: S3ProxyError): void {
  if (response.headersSent) {
    response.destroy()
    return
  }
  const body = `<Error><Code>${escapeXml(code)}</Code><Message>${escapeXml(message)}</Message></Error>`
  response.writeHead(status, {
    'Content-Type': 'application/xml',
    'Content-Length': Buffer.byteLength(body),
    'Warren-Error': code,
    ...(status === 503 ? { 'Retry-After': '1' } : {}),
  })
  response.end(body)
}
