/** Who is asking. */
import type { PlanName } from '../users/plans.ts'

export type CallerUser = { id: string; plan: PlanName; operator: boolean }

/** A sandbox access token stands for its owner, on one sandbox, for some operations (spec 5). */
export type Caller =
  | { kind: 'user'; user: CallerUser }
  | { kind: 'token'; user: CallerUser; sandboxId: string; tokenHash: string }

/** Each access token is counted apart from its owner (wire 20). */
export const callerKey = (caller: Caller): string =>
  caller.kind === 'token' ? `token:${caller.sandboxId}` : `user:${caller.user.id}`

/** `bearer`: `Authorization: Bearer`, as a key. `query`: a parameter of the URL, which takes users only. */
export type CredentialPlace = 'bearer' | 'query'

/**
 * Who may use a route; every route says so.
 *   public    anyone; a credential is not even looked at
 *   user      a user by any credential, but no sandbox access token
 *   token     a user, or the access token of that very sandbox
 *   operator  a user with the operator flag
 */
export type Access = 'public' | 'user' | 'token' | 'operator'
