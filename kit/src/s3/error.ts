/** The error that an S3 server sends in the body of a response. */
import { findText, parseXml } from './xml.ts'

/** Errors of AWS are well below 2 KiB. */
export const S3_ERROR_MAX_BYTES = 64 * 1024

export type S3Error = {
  /** Such as `NoSuchBucket`: letters and digits. */
  code: string
  /** Do not forward it: it may contain the access key. */
  message: string
  /** The region that the server expects, where it says so. */
  region?: string
}

/** Undefined if the text is not an S3 error. */
export function parseS3Error(text: string): S3Error | undefined {
  if (text.length > S3_ERROR_MAX_BYTES) return undefined
  try {
    const root = parseXml(text)
    const code = findText(root, 'Code')
    if (root.name !== 'Error' || code === undefined || !/^[A-Za-z0-9]{1,64}$/.test(code)) return undefined
    const region = findText(root, 'Region')
    const message = findText(root, 'Message') ?? ''
    return { code, message, ...(region !== undefined && isRegion(region) ? { region } : {}) }
  } catch {
    return undefined
  }
}

/**
 * The region that a server wants a request to be signed for; undefined if the region was not the problem. AWS names it in a
 * header, also in answers to HEAD, and like other servers in errors about the signature.
 */
export function findExpectedRegion(
  headers: Readonly<Record<string, string | string[] | undefined>>,
  error: S3Error | undefined,
): string | undefined {
  const header = headers['x-amz-bucket-region']
  if (typeof header === 'string' && isRegion(header)) return header
  return error?.code === 'AuthorizationHeaderMalformed' ? error.region : undefined
}

const isRegion = (text: string): boolean => /^[a-z0-9-]{1,32}$/.test(text)
