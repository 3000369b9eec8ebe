/** An access token is 256 random bits, shown once and stored as a hash, like an API key. */
import { randomBytes } from 'node:crypto'
import { failure } from '@warren/kit/failure'
import {
  ACCESS_TOKEN_PREFIX,
  type AccessTokenSecretView,
  accessTokenHint,
  accessTokenStatuses,
  canIssueAccessToken,
  type SandboxStatus,
} from '@warren/protocol'
import { hashKey } from '../users/keys.ts'

export function newAccessToken(): { token: string; hash: Buffer; hint: string } {
  const token = ACCESS_TOKEN_PREFIX + randomBytes(32).toString('hex')
  return { token, hash: hashKey(token), hint: accessTokenHint(token) }
}

export function checkTokenLifecycle(status: SandboxStatus): void {
  if (canIssueAccessToken(status)) return
  throw failure('token_lifecycle', `sandbox is ${status}, expected ${accessTokenStatuses()}`)
}

export const viewSecret = (
  token: string,
  row: { created_at: Date; rotated_at: Date | null },
): AccessTokenSecretView => ({
  token,
  enabled: true,
  created_at: row.created_at.toISOString(),
  ...(row.rotated_at ? { rotated_at: row.rotated_at.toISOString() } : {}),
})
