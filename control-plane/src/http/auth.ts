/**
 * Credentials (spec 5, wire 18). The first header present decides, in this order, and nothing falls through:
 * X-Auth-Token (session), X-Access-Token (OAuth), X-Api-Key (a user's key or a sandbox's access token). Where a route
 * allows another place for clients that cannot send these, it counts only when none of them is there.
 */
import { hash } from 'node:crypto'
import { failure, notFound, unauthorized } from '@warren/kit/failure'
import { ACCESS_TOKEN_PREFIX, type ShellWsQuery, shellWsToken } from '@warren/protocol'
import type { FastifyRequest } from 'fastify'
import { findTokenCaller } from '../access-tokens/find.ts'
import type { Deps } from '../deps.ts'
import { findKeyCaller } from '../users/find-by-key.ts'
import { findOauthCaller } from '../users/introspect.ts'
import { findSessionCaller } from '../users/session.ts'
import type { Access, Caller, CredentialPlace } from './caller.ts'

type Kind = 'session' | 'oauth' | 'key' | 'query'
const HEADERS: [string, Kind, string][] = [
  ['x-auth-token', 'session', 'invalid session token'],
  ['x-access-token', 'oauth', 'invalid access token'],
  ['x-api-key', 'key', 'invalid api key'],
]

/** Without a promise when the credential is remembered, as for nearly every request: promises cost more than the lookup. */
export function authenticate(
  deps: Deps,
  request: Pick<FastifyRequest, 'headers' | 'query'>,
  place?: CredentialPlace,
): Caller | Promise<Caller> {
  for (const [header, kind, refusal] of HEADERS) {
    const credential = request.headers[header]
    if (typeof credential !== 'string' || credential === '') continue
    return identify(deps, kind, credential, refusal)
  }
  const bearer = place === 'bearer' ? /^bearer +(\S+)$/i.exec(request.headers.authorization ?? '')?.[1] : undefined
  if (bearer !== undefined) return identify(deps, 'key', bearer, 'invalid api key')
  const token = place === 'query' ? shellWsToken(request.query as ShellWsQuery) : undefined
  if (token !== undefined) return identify(deps, 'query', token, 'invalid token')
  throw unauthorized('missing credential, send X-Api-Key')
}

function identify(deps: Deps, kind: Kind, credential: string, refusal: string): Caller | Promise<Caller> {
  const found = findCaller(deps, kind, credential)
  return found instanceof Promise ? found.then((caller) => known(caller, refusal)) : found
}

function known(caller: Caller | undefined, refusal: string): Caller {
  if (!caller) throw unauthorized(refusal)
  return caller
}

function findCaller(deps: Deps, kind: Kind, credential: string): Caller | Promise<Caller | undefined> {
  const digest = hash('sha256', credential, 'hex')
  if (credential.startsWith(ACCESS_TOKEN_PREFIX)) {
    // It has one place (spec 5, rule 4); elsewhere it must not even reach another service.
    return kind === 'key' ? findTokenCaller(deps, digest) : Promise.resolve(undefined)
  }
  return deps.credentials.find(`${kind} ${digest}`, () => lookUp(deps, kind, credential, digest))
}

async function lookUp(deps: Deps, kind: Kind, credential: string, digest: string) {
  const bytes = Buffer.from(digest, 'hex')
  if (kind === 'key') return { caller: await findKeyCaller(deps, bytes) }
  if (kind === 'session') return findSessionCaller(deps, credential)
  if (kind === 'oauth') return findOauthCaller(deps, credential)
  return findUserCaller(deps, credential, bytes)
}

/** A URL does not say what kind of credential it carries. */
async function findUserCaller(deps: Deps, credential: string, bytes: Buffer) {
  const caller = await findKeyCaller(deps, bytes)
  if (caller) return { caller }
  const session = await findSessionCaller(deps, credential)
  return session.caller ? session : findOauthCaller(deps, credential)
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
