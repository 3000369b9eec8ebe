/** The token by which the mount program of a guest names its mount to the S3 proxy. It is worth nothing elsewhere. */
import { createHash, randomBytes } from 'node:crypto'

export const MOUNT_TOKEN = /^[A-Za-z0-9_-]{43}$/

export const hashMountToken = (token: string): string => createHash('sha256').update(token).digest('hex')

/** The guest gets the token, the proxy the hash. */
export function createMountToken(): { token: string; tokenHash: string } {
  const token = randomBytes(32).toString('base64url')
  return { token, tokenHash: hashMountToken(token) }
}
