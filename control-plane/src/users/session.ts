/**
 * Identifies the user of a session token. The token is opaque; an external users service resolves it:
 *
 *   GET {WARREN_USERS_SERVICE_URL}   X-Auth-Token: <token>
 *
 * A valid token is answered with 200 and {"user_id": "..."} or {"id": "..."}, bare or in a JSend envelope. 400, 401, 403
 * and 404 mean that the token is invalid. Everything else fails the request with 502.
 */
import { upstreamUnavailable } from '@warren/kit/failure'
import type { Deps } from '../deps.ts'
import type { Caller } from '../http/caller.ts'
import { callService, isRecord } from './call-service.ts'
import { findOrCreateExternalUser } from './create.ts'
import { toCallerUser } from './find-by-key.ts'

const INVALID_TOKEN_STATUSES = [400, 401, 403, 404]

export async function findSessionCaller(deps: Deps, token: string): Promise<{ caller: Caller | undefined }> {
  const url = deps.config.usersServiceUrl
  if (url === undefined) return { caller: undefined }
  const { status, body } = await callService('users service', url, {
    headers: { 'x-auth-token': token, accept: 'application/json' },
  })
  if (INVALID_TOKEN_STATUSES.includes(status)) return { caller: undefined }
  const id = readUserId(body)
  if (id === undefined) {
    throw upstreamUnavailable('users service unavailable', {
      cause: new Error(`response with status ${status} has no user id`),
    })
  }
  const user = await findOrCreateExternalUser(deps.db, `session:${id}`)
  return { caller: { kind: 'user', user: toCallerUser(deps, user), credential: 'session token' } }
}

function readUserId(body: unknown): string | undefined {
  if (!isRecord(body)) return undefined
  const user = isRecord(body.data) ? body.data : body
  const id = user.user_id ?? user.id
  if (typeof id === 'number') return String(id)
  return typeof id === 'string' && id !== '' ? id : undefined
}
