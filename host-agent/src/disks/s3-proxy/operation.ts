/**
 * Parses the request of a guest into one of twelve operations (docs/disk-protocol.md#requests). Pure. An operation has everything
 * that is sent to the server; nothing else of the request is used later.
 */
import { decodeS3 } from '@warren/kit/s3/encode'
import { invalidRequest, S3ProxyError } from './error.ts'
import {
  CONDITIONS,
  CONTENT_HEADERS,
  COPY_CONDITIONS,
  DIGESTS,
  type GuestHeaders,
  isTooLong,
  parseContentLength,
  selectHeaders,
  WRITE_CONDITIONS,
} from './guest-headers.ts'
import { checkPrefix, parseKey } from './key.ts'

export type OperationName = keyof typeof RULES

export type Operation = {
  name: OperationName
  method: string
  /** Relative to the mount. Empty for the operations on the bucket. */
  key: string
  /** Relative to the mount; of copies only. */
  source?: string
  /** Of parts and listings; without the parameters that the proxy sets. */
  query: Readonly<Record<string, string>>
  /** To be forwarded, by lower-case name. Without the copy source. */
  headers: Readonly<Record<string, string>>
  /** Of the body. */
  length: number
  isWrite: boolean
  /** Doing it twice has the same result and the same answer. */
  isRepeatable: boolean
}

type Rule = {
  method: string
  on: 'bucket' | 'key'
  /** Names of parameters that must be present. */
  query?: readonly string[]
  optionalQuery?: readonly string[]
  headers?: readonly string[]
  hasMetadata?: true
  isCopy?: true
  body?: 'object' | 'parts'
  isWrite?: true
  /** Never, whatever its headers are. */
  isUnrepeatable?: true
}

const LIST_OPTIONS = ['prefix', 'delimiter', 'continuation-token', 'max-keys', 'encoding-type']
const COPY_HEADERS = ['x-amz-copy-source', ...COPY_CONDITIONS]
const READ_HEADERS = [...CONDITIONS, 'range', 'x-amz-checksum-mode']

const RULES = {
  headBucket: { method: 'HEAD', on: 'bucket' },
  listObjects: { method: 'GET', on: 'bucket', query: ['list-type'], optionalQuery: LIST_OPTIONS },
  headObject: { method: 'HEAD', on: 'key', headers: READ_HEADERS },
  getObject: { method: 'GET', on: 'key', headers: READ_HEADERS },
  putObject: {
    method: 'PUT',
    on: 'key',
    headers: [...WRITE_CONDITIONS, ...CONTENT_HEADERS, ...DIGESTS],
    hasMetadata: true,
    body: 'object',
    isWrite: true,
  },
  copyObject: {
    method: 'PUT',
    on: 'key',
    headers: [...COPY_HEADERS, ...WRITE_CONDITIONS, ...CONTENT_HEADERS, 'x-amz-metadata-directive'],
    hasMetadata: true,
    isCopy: true,
    isWrite: true,
  },
  deleteObject: { method: 'DELETE', on: 'key', headers: ['if-match'], isWrite: true },
  createUpload: {
    method: 'POST',
    on: 'key',
    query: ['uploads'],
    headers: CONTENT_HEADERS,
    hasMetadata: true,
    isWrite: true,
    isUnrepeatable: true,
  },
  uploadPart: {
    method: 'PUT',
    on: 'key',
    query: ['partNumber', 'uploadId'],
    headers: DIGESTS,
    body: 'object',
    isWrite: true,
  },
  copyPart: {
    method: 'PUT',
    on: 'key',
    query: ['partNumber', 'uploadId'],
    headers: [...COPY_HEADERS, 'x-amz-copy-source-range'],
    isCopy: true,
    isWrite: true,
  },
  completeUpload: {
    method: 'POST',
    on: 'key',
    query: ['uploadId'],
    headers: WRITE_CONDITIONS,
    body: 'parts',
    isWrite: true,
    isUnrepeatable: true,
  },
  abortUpload: { method: 'DELETE', on: 'key', query: ['uploadId'], isWrite: true, isUnrepeatable: true },
} as const satisfies Record<string, Rule>

/** Of CompleteMultipartUpload: 10,000 parts. */
export const PARTS_MAX_BYTES = 1024 ** 2

export function parseOperation(method: string, target: string, headers: GuestHeaders): Operation {
  const [path = '', queryText, ...rest] = target.split('?')
  if (rest.length > 0) throw invalidRequest('the target has several question marks')
  const query = parseQuery(queryText)
  const key = path === '/' ? '' : parseKey(path)
  const isCopy = headers.has('x-amz-copy-source')
  const [name, rule] = findRule(method, key === '' ? 'bucket' : 'key', query, isCopy)

  const allowed = new Set<string>(rule.headers ?? [])
  const { 'x-amz-copy-source': copySource, ...selected } = selectHeaders(headers, allowed, rule.hasMetadata ?? false)
  if (name === 'copyObject' && selected['x-amz-metadata-directive'] !== 'REPLACE') dropReplacements(selected)
  const source = copySource === undefined ? undefined : parseKey(copySource, 'x-amz-copy-source')
  if (source?.endsWith('/') && name === 'copyPart') throw invalidRequest('the source of a part is a directory')

  const isConditional = Object.keys(selected).some((header) => header.startsWith('if-'))
  return {
    name,
    method,
    key,
    ...(source === undefined ? {} : { source }),
    query: checkQuery(query),
    headers: selected,
    length: checkBody(headers, selected, rule.body),
    isWrite: rule.isWrite ?? false,
    isRepeatable: !rule.isUnrepeatable && !(rule.isWrite && isConditional),
  }
}

function findRule(
  method: string,
  on: 'bucket' | 'key',
  query: ReadonlyMap<string, string>,
  isCopy: boolean,
): [OperationName, Rule] {
  const found = Object.entries<Rule>(RULES).find(([, rule]) => {
    const required = rule.query ?? []
    const known = new Set([...required, ...(rule.optionalQuery ?? [])])
    return (
      rule.method === method &&
      rule.on === on &&
      (rule.isCopy ?? false) === isCopy &&
      required.every((name) => query.has(name)) &&
      [...query.keys()].every((name) => known.has(name))
    )
  })
  if (found === undefined)
    throw new S3ProxyError(501, 'NotImplemented', 'this is not an operation of the disk protocol')
  return found as [OperationName, Rule]
}

/** Each name at most once. A value may be missing, as in `?uploads`. */
function parseQuery(text: string | undefined): Map<string, string> {
  const query = new Map<string, string>()
  if (text === undefined || text === '') return query
  for (const pair of text.split('&')) {
    const [, rawName, rawValue = ''] = /^([a-zA-Z-]{1,32})(?:=([A-Za-z0-9\-._~/%]{0,8192}))?$/.exec(pair) ?? []
    if (rawName === undefined) throw invalidRequest('the query is not valid')
    if (query.has(rawName)) throw invalidRequest('a parameter of the query is repeated')
    const value = decodeS3(rawValue)
    if (value === undefined) throw invalidRequest('the query is not percent-encoded UTF-8')
    query.set(rawName, value)
  }
  return query
}

/** Ids of uploads are names of folders for some servers. */
const VALUES: Record<string, RegExp> = {
  'list-type': /^2$/,
  delimiter: /^\/?$/,
  'max-keys': /^(?:[1-9]\d{0,2}|1000)$/,
  'encoding-type': /^url$/,
  'continuation-token': /^[A-Za-z0-9_-]{1,6000}\.[A-Za-z0-9_-]{22}$/,
  uploads: /^$/,
  uploadId: /^(?!\.+$)[A-Za-z0-9._~=+-]{1,1024}$/,
  partNumber: /^(?:[1-9]\d{0,3}|10000)$/,
}

function checkQuery(query: ReadonlyMap<string, string>): Record<string, string> {
  for (const [name, value] of query) {
    if (name === 'prefix') checkPrefix(value)
    else if (!VALUES[name]!.test(value)) throw invalidRequest(`the parameter ${name} is not valid`)
  }
  return Object.fromEntries(query)
}

/** Without REPLACE a copy has the headers of its source, and servers differ in what they do with new ones. */
function dropReplacements(headers: Record<string, string>): void {
  for (const name of Object.keys(headers)) {
    if (name.startsWith('x-amz-meta-'))
      throw invalidRequest('metadata of a copy needs x-amz-metadata-directive: REPLACE')
    if ((CONTENT_HEADERS as readonly string[]).includes(name)) delete headers[name]
  }
}

/** Returns the length of the body. */
function checkBody(headers: GuestHeaders, selected: Record<string, string>, body: Rule['body']): number {
  const length = parseContentLength(headers)
  if (headers.has('transfer-encoding') || (body !== undefined && length === undefined)) {
    throw new S3ProxyError(411, 'MissingContentLength', 'the request must have a Content-Length')
  }
  if (length === undefined || length === 0) return 0
  if (body === undefined) throw invalidRequest('this operation has no body')
  if (isTooLong(length) || (body === 'parts' && length > PARTS_MAX_BYTES)) {
    throw new S3ProxyError(413, 'EntityTooLarge', 'the body is too long')
  }
  if (body === 'object' && !DIGESTS.some((name) => selected[name] !== undefined)) {
    throw invalidRequest('a body needs Content-MD5 or x-amz-checksum-*')
  }
  return length
}
