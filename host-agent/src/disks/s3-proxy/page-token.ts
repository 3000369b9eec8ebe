/**
 * The tokens by which a guest continues a listing: the token of the server, with a code that shows that it was made for this
 * mount and prefix. Some servers use the last key as their token, and would continue anywhere in the bucket.
 */
import { createHmac, timingSafeEqual } from 'node:crypto'
import { invalidRequest } from './error.ts'

const CODE_BYTES = 16

export type PageScope = { pageKey: Buffer; mountId: string; prefix: string }

export const sealPageToken = (scope: PageScope, token: string): string =>
  `${Buffer.from(token).toString('base64url')}.${codeOf(scope, token).toString('base64url')}`

export function openPageToken(scope: PageScope, sealed: string): string {
  const [token = '', code = ''] = sealed.split('.').map((part) => Buffer.from(part, 'base64url'))
  const text = token.toString()
  if (code.length !== CODE_BYTES || !timingSafeEqual(Buffer.from(code), codeOf(scope, text))) {
    throw invalidRequest('the continuation token is not of this listing; begin the listing again')
  }
  return text
}

function codeOf({ pageKey, mountId, prefix }: PageScope, token: string): Buffer {
  return createHmac('sha256', pageKey)
    .update(JSON.stringify([mountId, prefix, token]))
    .digest()
    .subarray(0, CODE_BYTES)
}
