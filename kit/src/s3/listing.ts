/** The answer to ListObjectsV2. */
import { decodeS3 } from './encode.ts'
import { findText, parseXml, type XmlElement } from './xml.ts'

/** A page has at most 1000 entries of six to ten elements each. */
const LIMITS = { elements: 20_000, depth: 4 }

export type S3Object = { key: string; size: number; etag: string; lastModified: string }

export type S3Listing = {
  objects: S3Object[]
  commonPrefixes: string[]
  /** Undefined on the last page. */
  nextToken: string | undefined
}

/** Throws if the text is not a listing. */
export function parseS3Listing(text: string): S3Listing {
  const root = parseXml(text, LIMITS)
  if (root.name !== 'ListBucketResult') throw new Error(`expected a listing, not an element ${root.name}`)
  // Some servers ignore the request to encode names.
  const decode = findText(root, 'EncodingType') === 'url' ? decodeName : (name: string) => name
  const listOf = (name: string) => root.children.filter((child) => child.name === name)
  const isTruncated = findText(root, 'IsTruncated') === 'true'
  const nextToken = findText(root, 'NextContinuationToken') || undefined
  if (isTruncated && nextToken === undefined) throw new Error('a listing is truncated and has no continuation token')
  return {
    objects: listOf('Contents').map((one) => parseObject(one, decode)),
    commonPrefixes: listOf('CommonPrefixes').map((one) => decode(getText(one, 'Prefix'))),
    nextToken: isTruncated ? nextToken : undefined,
  }
}

function parseObject(element: XmlElement, decode: (name: string) => string): S3Object {
  const size = Number(getText(element, 'Size'))
  if (!Number.isSafeInteger(size) || size < 0) throw new Error('a listing has an object without a valid size')
  return {
    key: decode(getText(element, 'Key')),
    size,
    etag: findText(element, 'ETag') ?? '',
    lastModified: getText(element, 'LastModified'),
  }
}

/** As in forms: AWS and others write a space as a plus sign, and a plus sign as `%2B`. */
function decodeName(name: string): string {
  const decoded = decodeS3(name.replaceAll('+', ' '))
  if (decoded === undefined) throw new Error('a listing has a name that is not percent-encoded UTF-8')
  return decoded
}

function getText(element: XmlElement, child: string): string {
  const text = findText(element, child)
  if (text === undefined) throw new Error(`${element.name} has no element ${child}`)
  return text
}
