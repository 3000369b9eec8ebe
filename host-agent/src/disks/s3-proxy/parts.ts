/** The body of CompleteMultipartUpload: parsed and written anew, with the elements that S3 knows. Pure. */
import { escapeXml, findText, parseXml, type XmlElement } from '@warren/kit/s3/xml'
import { invalidRequest } from './error.ts'

const PARTS_MAX = 10_000
const LIMITS = { elements: 1 + PARTS_MAX * 4, depth: 3 }
const CHECKSUMS = ['ChecksumCRC32', 'ChecksumCRC32C', 'ChecksumCRC64NVME', 'ChecksumSHA1', 'ChecksumSHA256']

export function rewriteParts(text: string): string {
  const root = parse(text)
  const parts = root.children
  if (root.name !== 'CompleteMultipartUpload' || parts.length === 0 || parts.length > PARTS_MAX) {
    throw invalidRequest(`the body must be CompleteMultipartUpload with 1 to ${PARTS_MAX} parts`)
  }
  return `<CompleteMultipartUpload>${parts.map(rewritePart).join('')}</CompleteMultipartUpload>`
}

function rewritePart(part: XmlElement): string {
  const number = text(part, 'PartNumber', /^(?:[1-9]\d{0,3}|10000)$/)
  const etag = text(part, 'ETag', /^"?[\x21\x23-\x7e]{1,256}"?$/)
  if (part.name !== 'Part' || number === undefined || etag === undefined) {
    throw invalidRequest('a part must have PartNumber and ETag')
  }
  const checksums = CHECKSUMS.map((name) => [name, text(part, name, /^[A-Za-z0-9+/]{4,88}={0,2}$/)] as const)
  const known = [['PartNumber', number] as const, ['ETag', etag] as const, ...checksums].filter(([, value]) => value)
  if (known.length !== part.children.length) throw invalidRequest('a part has an element that is not known')
  return `<Part>${known.map(([name, value]) => `<${name}>${escapeXml(value ?? '')}</${name}>`).join('')}</Part>`
}

function text(part: XmlElement, name: string, form: RegExp): string | undefined {
  let value: string | undefined
  try {
    value = findText(part, name)?.trim()
  } catch {
    throw invalidRequest(`a part has several elements ${name}`)
  }
  if (value !== undefined && !form.test(value)) throw invalidRequest(`${name} of a part is not valid`)
  return value
}

function parse(body: string): XmlElement {
  try {
    return parseXml(body, LIMITS)
  } catch {
    throw invalidRequest('the body is not valid XML')
  }
}
