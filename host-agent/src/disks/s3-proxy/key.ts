/**
 * Keys that a guest may name. They are decoded once, checked, and encoded anew when they are sent, so that what is checked is
 * what the server gets. Servers that store objects as files would resolve dot segments and empty segments.
 */
import { decodeS3 } from '@warren/kit/s3/encode'
import { invalidRequest } from './error.ts'

const KEY_MAX_BYTES = 1024

/** `path` is `/KEY` as it was sent. The result is relative to the mount and not empty. */
export function parseKey(path: string, what = 'the path'): string {
  if (!path.startsWith('/')) throw invalidRequest(`${what} must begin with a slash`)
  const key = decodeName(path.slice(1), what)
  const fault = findKeyFault(key)
  if (fault !== undefined) throw invalidRequest(`${what} ${fault}`)
  return key
}

/** The prefix of a listing may be empty, and its last segment may be the beginning of a name. It is decoded already. */
export function checkPrefix(prefix: string): void {
  const fault = prefix === '' ? undefined : findKeyFault(prefix)
  if (fault !== undefined) throw invalidRequest(`the prefix ${fault}`)
}

/** What is wrong with a key that is relative to a mount; undefined if a guest may use it. */
export function findKeyFault(key: string): string | undefined {
  if (key === '') return 'has no key'
  if (!key.isWellFormed()) return 'is not UTF-8'
  // XML, and with it a listing, cannot contain most of them. Tab, line feed and carriage return are allowed.
  if (/[^\P{Cc}\t\n\r]|[\ufffe\uffff]/u.test(key)) return 'has a control character'
  const segments = key.split('/')
  if (segments.at(-1) === '') segments.pop() // A marker of a directory.
  if (segments.includes('')) return 'has an empty segment'
  // Some servers take backslashes for slashes.
  if (key.split(/[/\\]/).some((segment) => segment === '.' || segment === '..')) return 'has a segment . or ..'
  return undefined
}

/** Puts the prefix of the mount in front. Throws if that is too long. */
export function toObjectKey(mountPrefix: string, key: string): string {
  const full = mountPrefix + key
  if (Buffer.byteLength(full) > KEY_MAX_BYTES) {
    throw invalidRequest(`the key is longer than ${KEY_MAX_BYTES} bytes, with the sub_path of the mount`)
  }
  return full
}

function decodeName(text: string, what: string): string {
  if (!/^[A-Za-z0-9\-._~/%]*$/.test(text)) throw invalidRequest(`${what} has a character that must be percent-encoded`)
  if (/%2f/i.test(text)) throw invalidRequest(`${what} has an encoded slash`)
  const decoded = decodeS3(text)
  if (decoded === undefined) throw invalidRequest(`${what} is not percent-encoded UTF-8`)
  return decoded
}
