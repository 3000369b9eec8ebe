/** Sandbox access tokens: a credential for one sandbox that its owner can pass on (docs/api.md#credentials). */
import { type Static, Type } from 'typebox'
import { Timestamp } from './ids.ts'
import type { SandboxStatus } from './sandbox.ts'

export const ACCESS_TOKEN_PREFIX = 'skp_sb_'

/** Response of create and rotate, the only ones that contain the token. */
export const AccessTokenSecretView = Type.Object({
  token: Type.String({
    pattern: `^${ACCESS_TOKEN_PREFIX}`,
    description: 'The token. It is shown only in this response.',
  }),
  enabled: Type.Literal(true),
  created_at: Timestamp,
  rotated_at: Type.Optional(Timestamp),
})
export type AccessTokenSecretView = Static<typeof AccessTokenSecretView>

/** `{enabled: false}` alone when the sandbox has no token; also the response of a delete. */
export const AccessTokenView = Type.Object({
  enabled: Type.Boolean({ description: 'Whether the sandbox has a token.' }),
  token_hint: Type.Optional(Type.String({ description: 'First and last characters of the token, joined by `...`.' })),
  created_at: Type.Optional(Timestamp),
  rotated_at: Type.Optional(Timestamp),
})
export type AccessTokenView = Static<typeof AccessTokenView>

const HINT_CHARACTERS = 4

/** Enough to tell tokens apart. Clients split it at `...` and compare both ends with a token they have. */
export function accessTokenHint(token: string): string {
  const head = token.slice(0, ACCESS_TOKEN_PREFIX.length + HINT_CHARACTERS)
  return `${head}...${token.slice(-HINT_CHARACTERS)}`
}

/** Every status in which the sandbox exists and is not being deleted. */
const ACCESS_TOKEN_STATUSES: readonly SandboxStatus[] = ['running', 'pausing', 'paused', 'resuming', 'forking', 'error']

/** As in the other messages of a 409: the statuses in which it would succeed. */
export const accessTokenStatuses = (): string => ACCESS_TOKEN_STATUSES.join(' or ')

/** Applies to create and rotate. A delete is allowed in every status. */
export const canIssueAccessToken = (status: SandboxStatus): boolean => ACCESS_TOKEN_STATUSES.includes(status)
