/** The headers of a guest that have a meaning here: each at most once, and with a value of the expected form. */
import { invalidRequest } from './error.ts'

export type GuestHeaders = ReadonlyMap<string, string>

const HEADERS_MAX = 100
const VALUE_MAX = 1024
const METADATA_MAX_BYTES = 2048

/** By lower-case name. A repeated header is refused: two programs may read different values. */
export function readHeaders(raw: readonly string[]): GuestHeaders {
  if (raw.length > 2 * HEADERS_MAX) throw invalidRequest(`the request has more than ${HEADERS_MAX} headers`)
  const headers = new Map<string, string>()
  for (let i = 0; i + 1 < raw.length; i += 2) {
    const name = raw[i]!.toLowerCase()
    if (headers.has(name)) throw invalidRequest('a header is repeated')
    headers.set(name, raw[i + 1]!)
  }
  return headers
}

const ETAG = /^(?:\*|(?:W\/)?"[!#-~]{0,256}"|[A-Za-z0-9-]{1,256})$/
const DATE = /^[A-Za-z0-9:,+ -]{1,64}$/
const TEXT = /^[\x20-\x7e]{1,1024}$/
const BASE64 = /^[A-Za-z0-9+/]{4,88}={0,2}$/

/** The form of each header that is forwarded, except metadata. */
const FORMS: Record<string, RegExp> = {
  'if-match': ETAG,
  'if-none-match': ETAG,
  'if-modified-since': DATE,
  'if-unmodified-since': DATE,
  range: /^bytes=(?:\d{1,16}-\d{0,16}|-\d{1,16})$/,
  'content-type': TEXT,
  // The encoding by which clients sign in chunks would change what is stored.
  'content-encoding': /^(?!.*aws-chunked)[\x21-\x7e, ]{1,256}$/i,
  'content-disposition': TEXT,
  'content-language': TEXT,
  'cache-control': TEXT,
  expires: TEXT,
  'content-md5': /^[A-Za-z0-9+/]{22}==$/,
  'x-amz-checksum-crc32': BASE64,
  'x-amz-checksum-crc32c': BASE64,
  'x-amz-checksum-crc64nvme': BASE64,
  'x-amz-checksum-sha1': BASE64,
  'x-amz-checksum-sha256': BASE64,
  'x-amz-checksum-mode': /^ENABLED$/,
  'x-amz-copy-source': /^\/[\x21-\x7e]{1,4096}$/,
  'x-amz-copy-source-if-match': ETAG,
  'x-amz-copy-source-if-none-match': ETAG,
  'x-amz-copy-source-if-modified-since': DATE,
  'x-amz-copy-source-if-unmodified-since': DATE,
  'x-amz-copy-source-range': /^bytes=\d{1,16}-\d{1,16}$/,
  'x-amz-metadata-directive': /^(?:COPY|REPLACE)$/,
}

export const CONDITIONS = ['if-match', 'if-none-match', 'if-modified-since', 'if-unmodified-since'] as const
export const WRITE_CONDITIONS = ['if-match', 'if-none-match'] as const
export const CONTENT_HEADERS = [
  'content-type',
  'content-encoding',
  'content-disposition',
  'content-language',
  'cache-control',
  'expires',
] as const
export const DIGESTS = [
  'content-md5',
  'x-amz-checksum-crc32',
  'x-amz-checksum-crc32c',
  'x-amz-checksum-crc64nvme',
  'x-amz-checksum-sha1',
  'x-amz-checksum-sha256',
] as const
export const COPY_CONDITIONS = [
  'x-amz-copy-source-if-match',
  'x-amz-copy-source-if-none-match',
  'x-amz-copy-source-if-modified-since',
  'x-amz-copy-source-if-unmodified-since',
] as const

/** Would change what a request means if it were dropped. Others, such as Content-Type of a GET, have no meaning there. */
const NEVER_DROPPED = new Set<string>([...CONDITIONS, 'range'])

/**
 * The headers of the request that an operation forwards. An `x-amz-` header or a condition that the operation does not have is
 * refused, not dropped.
 */
export function selectHeaders(
  headers: GuestHeaders,
  allowed: ReadonlySet<string>,
  mayHaveMetadata: boolean,
): Record<string, string> {
  const selected: Record<string, string> = {}
  let metadataBytes = 0
  for (const [name, value] of headers) {
    const isMetadata = name.startsWith(METADATA_PREFIX)
    if (isMetadata && mayHaveMetadata) {
      metadataBytes += name.length - METADATA_PREFIX.length + value.length
      checkMetadata(name, value, metadataBytes)
    } else if (!allowed.has(name)) {
      if (name.startsWith('x-amz-') || NEVER_DROPPED.has(name)) throw invalidRequest(`${name} is not allowed here`)
      continue
    } else if (!FORMS[name]!.test(value)) throw invalidRequest(`the value of ${name} is not valid`)
    selected[name] = value
  }
  return selected
}

export const METADATA_PREFIX = 'x-amz-meta-'

function checkMetadata(name: string, value: string, totalBytes: number): void {
  if (!/^x-amz-meta-[a-z0-9._-]{1,128}$/.test(name)) throw invalidRequest('the name of a metadata header is not valid')
  if (value.length > VALUE_MAX || !/^[\x20-\x7e]*$/.test(value)) {
    throw invalidRequest('the value of a metadata header is not printable ASCII, or too long')
  }
  if (totalBytes > METADATA_MAX_BYTES) throw invalidRequest(`metadata is longer than ${METADATA_MAX_BYTES} bytes`)
}

const BODY_MAX_BYTES = 5 * 1024 ** 3

/** Undefined without the header. */
export function parseContentLength(headers: GuestHeaders): number | undefined {
  const text = headers.get('content-length')
  if (text === undefined) return undefined
  if (!/^\d{1,16}$/.test(text)) throw invalidRequest('Content-Length is not valid')
  return Number(text)
}

export const isTooLong = (length: number): boolean => length > BODY_MAX_BYTES
