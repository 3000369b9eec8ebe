/** A key to one sandbox, to hand to someone else (spec 2.14, 4.14; wire 16). */
import { type Static, Type } from 'typebox'
import { Timestamp } from './ids.ts'
import type { SandboxStatus } from './sandbox.ts'

export const ACCESS_TOKEN_PREFIX = 'skp_sb_'

/** Of create and rotate: the only answers with the token itself. */
export const AccessTokenSecretView = Type.Object({
  token: Type.String({ pattern: `^${ACCESS_TOKEN_PREFIX}`, description: 'Shown this once.' }),
  enabled: Type.Literal(true),
  created_at: Timestamp,
  rotated_at: Type.Optional(Timestamp),
})
export type AccessTokenSecretView = Static<typeof AccessTokenSecretView>

/** Without a token, `{enabled: false}` alone; so answers a delete too. */
export const AccessTokenView = Type.Object({
  enabled: Type.Boolean(),
  token_hint: Type.Optional(Type.String()),
  created_at: Type.Optional(Timestamp),
  rotated_at: Type.Optional(Timestamp),
})
export type AccessTokenView = Static<typeof AccessTokenView>

const HINT_CHARACTERS = 4

/** Enough to tell tokens apart. A client splits it at `...` and compares both ends with a token it holds. */
export function accessTokenHint(token: string): string {
  const head = token.slice(0, ACCESS_TOKEN_PREFIX.length + HINT_CHARACTERS)
  return `${head}...${token.slice(-HINT_CHARACTERS)}`
}

/** Not before there is a sandbox to open, and not once it is going. */
const ACCESS_TOKEN_STATUSES: readonly SandboxStatus[] = ['running', 'pausing', 'paused', 'resuming', 'forking', 'error']

/** Create and rotate; a delete is always right. */
export const canIssueAccessToken = (status: SandboxStatus): boolean => ACCESS_TOKEN_STATUSES.includes(status)
