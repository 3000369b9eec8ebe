/**
 * Session tokens are opaque: a users service says who they belong to.
 *
 *   GET {WARREN_USERS_SERVICE_URL}   X-Auth-Token: <token>
 *   200 {"user_id": "..."}  (or {"id": "..."}, bare or in a JSend envelope); 401, 403, 404: not valid; else: 502
 */
import { upstreamUnavailable } from '@warren/kit/failure'
import type { Deps } from '../deps.ts'
import type { Caller } from '../http/caller.ts'
import { callService, isRecord } from './call-service.ts'
import { findOrCreateExternalUser } from './create.ts'
import { toCallerUser } from './find-by-key.ts'

const REFUSALS = [400, 401, 403, 404]

export async function findSessionCaller(deps: Deps, token: string): Promise<{ caller: Caller | undefined }> {
  const url = deps.config.usersServiceUrl
  if (url === undefined) return { caller: undefined }
  const { status, answer } = await callService('users service', url, {
    headers: { 'x-auth-token': token, accept: 'application/json' },
  })
  if (REFUSALS.includes(status)) return { caller: undefined }
  const id = readUserId(answer)
  if (id === undefined) {
    throw upstreamUnavailable('users service unavailable', { cause: new Error(`it answered ${status} without an id`) })
  }
  const user = await findOrCreateExternalUser(deps.db, `session:${id}`)
  return { caller: { kind: 'user', user: toCallerUser(deps, user) } }
}

function readUserId(answer: unknown): string | undefined {
  if (!isRecord(answer)) return undefined
  const body = isRecord(answer.data) ? answer.data : answer
  const id = body.user_id ?? body.id
  if (typeof id === 'number') return String(id)
  return typeof id === 'string' && id !== '' ? id : undefined
}
