/**
 * Credentials (spec 5, wire 18). The first header present decides, in this order, and nothing falls through:
 * X-Auth-Token (session), X-Access-Token (OAuth), X-Api-Key (a user's key or a sandbox's access token).
 */
import { hash } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { failure, notFound, unauthorized } from '@warren/kit/failure'
import { ACCESS_TOKEN_PREFIX, findTokenCaller } from '../access-tokens/find.ts'
import type { Deps } from '../deps.ts'
import { findKeyCaller } from '../users/find-by-key.ts'
import { findOauthCaller } from '../users/introspect.ts'
import { findSessionCaller } from '../users/session.ts'
import type { Access, Caller } from './callers.ts'

type Kind = 'session' | 'oauth' | 'key'
const HEADERS: [string, Kind, string][] = [
  ['x-auth-token', 'session', 'invalid session token'],
  ['x-access-token', 'oauth', 'invalid access token'],
  ['x-api-key', 'key', 'invalid api key'],
]

/** Without a promise when the credential is remembered, as for nearly every request: promises cost more than the lookup. */
export function authenticate(deps: Deps, headers: IncomingHttpHeaders): Caller | Promise<Caller> {
  for (const [header, kind, refusal] of HEADERS) {
    const credential = headers[header]
    if (typeof credential !== 'string' || credential === '') continue
    const found = findCaller(deps, kind, credential)
    return found instanceof Promise ? found.then((caller) => known(caller, refusal)) : found
  }
  throw unauthorized('missing credential, send X-Api-Key')
}

function known(caller: Caller | undefined, refusal: string): Caller {
  if (!caller) throw unauthorized(refusal)
  return caller
}

/** Also for the query parameter of the WebSocket shell, which takes user credentials only (spec 5, rule 5). */
export function findCaller(deps: Deps, kind: Kind, credential: string): Caller | Promise<Caller | undefined> {
  const digest = hash('sha256', credential, 'hex')
  return deps.credentials.find(`${kind} ${digest}`, () => lookUp(deps, kind, credential, digest))
}

async function lookUp(deps: Deps, kind: Kind, credential: string, digest: string) {
  const isToken = credential.startsWith(ACCESS_TOKEN_PREFIX)
  // A sandbox access token has one place (spec 5, rule 4); elsewhere it must not even reach another service.
  if (kind !== 'key') {
    if (isToken) return { caller: undefined }
    return kind === 'session' ? findSessionCaller(deps, credential) : findOauthCaller(deps, credential)
  }
  const bytes = Buffer.from(digest, 'hex')
  return { caller: isToken ? await findTokenCaller(deps, bytes) : await findKeyCaller(deps, bytes) }
}

/** May this caller use this route? Another's sandbox is absent (404) before anything is forbidden (403). */
export function authorize(caller: Caller, access: Access, route: { url: string; sandboxId: string | undefined }): void {
  if (caller.kind === 'token') {
    if (route.sandboxId !== undefined && route.sandboxId !== caller.sandboxId) throw notFound('sandbox')
    if (access !== 'token') throw failure('token_not_allowed', 'a sandbox access token may not do this')
    return
  }
  if (access === 'operator' && !caller.user.operator) {
    throw failure('operator_required', 'only an operator may do this')
  }
}
