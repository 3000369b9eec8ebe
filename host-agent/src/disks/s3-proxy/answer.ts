/** Writes the answers to guests anew from those of servers (docs/disk-protocol.md#responses). Pure. */
import type { IncomingHttpHeaders } from 'node:http'
import { encodeS3Key } from '@warren/kit/s3/encode'
import { parseS3Error } from '@warren/kit/s3/error'
import { parseS3Listing } from '@warren/kit/s3/listing'
import { escapeXml, findText, parseXml } from '@warren/kit/s3/xml'
import type { S3ProxyError } from './error.ts'
import { findKeyFault } from './key.ts'
import type { Mount } from './mounts.ts'
import type { Operation } from './operation.ts'
import { pageScope } from './outgoing.ts'
import { sealPageToken } from './page-token.ts'
import { explainRefusal, statusOfCode, upstreamInvalid } from './upstream-error.ts'

const FORWARDED = new Set([
  'content-type',
  'content-range',
  'content-encoding',
  'content-disposition',
  'content-language',
  'cache-control',
  'expires',
  'accept-ranges',
  'etag',
  'last-modified',
  'x-amz-mp-parts-count',
])
const FORWARDED_PREFIXES = ['x-amz-meta-', 'x-amz-checksum-']

/** Without Content-Length, which depends on what is sent. */
export function selectAnswerHeaders(headers: IncomingHttpHeaders): Record<string, string> {
  const selected: Record<string, string> = {}
  for (const [name, value] of Object.entries(headers)) {
    const isForwarded = FORWARDED.has(name) || FORWARDED_PREFIXES.some((prefix) => name.startsWith(prefix))
    // Node's parser accepts characters that its `writeHead` throws on.
    if (isForwarded && typeof value === 'string' && /^[\t\x20-\x7e\x80-\xff]*$/.test(value)) selected[name] = value
  }
  return selected
}

/** Undefined if it is missing or not a number. */
export function parseAnswerLength({ 'content-length': text }: IncomingHttpHeaders): number | undefined {
  return text !== undefined && /^\d{1,16}$/.test(text) ? Number(text) : undefined
}

/**
 * Keys are relative to the mount. Left out are those outside of the prefix, which no correct server sends, and those that a
 * guest cannot name, such as `a//b` and `../x`: as names of files they would lead elsewhere.
 */
export function renderListing(mount: Mount, { query }: Operation, text: string): string {
  const listing = parse(() => parseS3Listing(text))
  const prefix = mount.prefix + (query.prefix ?? '')
  const relativeKey = (key: string) => {
    const relative = key.slice(mount.prefix.length)
    return key.startsWith(prefix) && findKeyFault(relative) === undefined ? encodeS3Key(relative) : undefined
  }
  const objects = listing.objects.flatMap((object) => {
    const key = relativeKey(object.key)
    return key === undefined ? [] : [{ ...object, key }]
  })
  const commonPrefixes = listing.commonPrefixes.flatMap((one) => relativeKey(one) ?? [])
  const { nextToken } = listing
  return element('ListBucketResult', [
    element('Prefix', encodeS3Key(query.prefix ?? '')),
    query.delimiter ? element('Delimiter', query.delimiter) : '',
    element('MaxKeys', query['max-keys'] ?? '1000'),
    element('KeyCount', String(objects.length + commonPrefixes.length)),
    element('EncodingType', 'url'),
    element('IsTruncated', String(nextToken !== undefined)),
    nextToken === undefined ? '' : element('NextContinuationToken', sealPageToken(pageScope(mount, query), nextToken)),
    ...objects.map(({ key, size, etag, lastModified }) =>
      element('Contents', [
        element('Key', key),
        element('LastModified', escapeXml(lastModified)),
        element('ETag', escapeXml(etag)),
        element('Size', String(size)),
      ]),
    ),
    ...commonPrefixes.map((one) => element('CommonPrefixes', [element('Prefix', one)])),
  ])
}

/** The answers of operations that have one in XML: the root element and what is forwarded of it. */
const RESULTS: Partial<Record<Operation['name'], { root: string; required: string; optional?: string }>> = {
  copyObject: { root: 'CopyObjectResult', required: 'ETag', optional: 'LastModified' },
  copyPart: { root: 'CopyPartResult', required: 'ETag', optional: 'LastModified' },
  createUpload: { root: 'InitiateMultipartUploadResult', required: 'UploadId' },
  completeUpload: { root: 'CompleteMultipartUploadResult', required: 'ETag' },
}

export const hasResult = ({ name }: Operation): boolean => name in RESULTS

/** Throws the error that a server sends inside of an answer with status 200. */
export function renderResult({ name }: Operation, text: string): string {
  const { root, required, optional } = RESULTS[name]!
  const error = parseS3Error(text)
  if (error !== undefined) throw explainRefusal(statusOfCode(error.code), error)
  return parse(() => {
    const parsed = parseXml(text)
    const value = findText(parsed, required)
    // SeaweedFS and others name the root of a copied part like that of a copied object.
    if (!parsed.name.endsWith('Result') || !value) throw new Error(`expected ${root} with ${required}`)
    const more = optional === undefined ? undefined : findText(parsed, optional)
    return element(root, [
      element(required, escapeXml(value)),
      optional === undefined || more === undefined ? '' : element(optional, escapeXml(more)),
    ])
  })
}

function parse<Value>(run: () => Value): Value {
  try {
    return run()
  } catch (error) {
    throw upstreamInvalid(error) satisfies S3ProxyError
  }
}

const element = (name: string, content: string | string[]): string =>
  `<${name}>${typeof content === 'string' ? content : content.join('')}</${name}>`
