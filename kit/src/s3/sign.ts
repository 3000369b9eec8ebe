/**
 * Signs requests with AWS Signature Version 4, in the `Authorization` header. Pure: the time is an argument.
 *
 * S3 differs from other AWS services in two ways. The path is encoded once and not normalised, and the payload's hash is also
 * a header, `x-amz-content-sha256`.
 */
import { createHash, createHmac } from 'node:crypto'
import { renderS3Query, type S3Query } from './encode.ts'

/** For bodies that are streamed: the signature does not cover them, so they need a digest in a header. */
export const UNSIGNED_PAYLOAD = 'UNSIGNED-PAYLOAD'
export const EMPTY_PAYLOAD_SHA256 = createHash('sha256').digest('hex')

export type S3Credentials = { accessKey: string; secretKey: string }

export type S3Request = {
  method: string
  /** As it is sent, percent-encoded (renderS3Path). */
  path: string
  query: S3Query
  /** By lower-case name; all of them are signed. `host` must be among them. */
  headers: Readonly<Record<string, string>>
  /** SHA-256 in hex, or UNSIGNED_PAYLOAD. */
  payloadHash: string
}

export const sha256Hex = (data: string | Uint8Array): string => createHash('sha256').update(data).digest('hex')

/** All headers to send, and the target of the request line. */
export function signS3Request(
  credentials: S3Credentials,
  region: string,
  request: S3Request,
  now: Date,
): { target: string; headers: Record<string, string> } {
  const amzDate = renderAmzDate(now)
  const headers = { ...request.headers, 'x-amz-content-sha256': request.payloadHash, 'x-amz-date': amzDate }
  const authorization = signV4(credentials, { region, service: 's3' }, { ...request, headers }, amzDate)
  const query = renderS3Query(request.query)
  return { target: query === '' ? request.path : `${request.path}?${query}`, headers: { ...headers, authorization } }
}

/** The value of the header `Authorization`. `amzDate` must also be a header where the service requires it. */
export function signV4(
  { accessKey, secretKey }: S3Credentials,
  { region, service }: { region: string; service: string },
  { method, path, query, headers, payloadHash }: S3Request,
  amzDate: string,
): string {
  const sorted = Object.entries(headers).sort(([one], [other]) => (one < other ? -1 : 1))
  const signedHeaders = sorted.map(([name]) => name).join(';')
  const canonicalHeaders = sorted.map(([name, value]) => `${name}:${value.trim().replace(/ +/g, ' ')}\n`).join('')
  const canonical = [method, path, renderS3Query(query), canonicalHeaders, signedHeaders, payloadHash].join('\n')
  const day = amzDate.slice(0, 8)
  const scope = `${day}/${region}/${service}/aws4_request`
  const key = [day, region, service, 'aws4_request'].reduce<string | Buffer>(hmac, `AWS4${secretKey}`)
  const signature = hmac(key, ['AWS4-HMAC-SHA256', amzDate, scope, sha256Hex(canonical)].join('\n')).toString('hex')
  return `AWS4-HMAC-SHA256 Credential=${accessKey}/${scope}, SignedHeaders=${signedHeaders}, Signature=${signature}`
}

const hmac = (key: string | Buffer, text: string): Buffer => createHmac('sha256', key).update(text).digest()

/** 20130524T000000Z */
export const renderAmzDate = (now: Date): string => now.toISOString().replace(/\.\d+|[:-]/g, '')
