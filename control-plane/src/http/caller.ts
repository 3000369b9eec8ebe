/** The types of an authenticated caller, and of what a route demands of one. */
import type { Limits, PlanName } from '../users/plans.ts'

export type CallerUser = { id: string; plan: PlanName; limits: Limits; operator: boolean }

/**
 * `credential` is a hint for the audit log, such as `skp_ab12...89ef`.
 *
 * A sandbox access token acts for the sandbox's owner, but on this sandbox only and for some operations only.
 */
export type Caller =
  | { kind: 'user'; user: CallerUser; credential: string }
  | { kind: 'token'; user: CallerUser; credential: string; sandboxId: string; tokenHash: string }

/** Identifies a caller for rate limits, idempotency keys and logs. An access token counts separately from its owner. */
export const callerKey = (caller: Caller): string =>
  caller.kind === 'token' ? `token:${caller.sandboxId}` : `user:${caller.user.id}`

/** `bearer`: `Authorization: Bearer` with an API key. `query`: a parameter of the URL, which takes users only. */
export type CredentialPlace = 'bearer' | 'query'

/**
 * Who may call a route. Every route declares one.
 *   public    everyone; credentials are ignored
 *   user      a user by any credential, but no sandbox access token
 *   token     a user, or the access token of the sandbox in question
 *   operator  a user with the operator flag
 */
export type Access = 'public' | 'user' | 'token' | 'operator'
