/**
 * Finds out who sent a request, from its credential (docs/api.md#credentials).
 *
 * The first header present decides, in the order of HEADERS; the others are not tried. Where a route accepts a credential
 * in another place, for clients that cannot send these headers, that place is used only when none of them is present.
 */
import { hash } from 'node:crypto'
import { failure, notFound, unauthorized } from '@warren/kit/failure'
import { ACCESS_TOKEN_PREFIX, type ShellWsQuery, shellWsTicket, shellWsToken } from '@warren/protocol'
import type { FastifyRequest } from 'fastify'
import { findTokenCaller } from '../access-tokens/find.ts'
import type { Deps } from '../deps.ts'
import { takeShellTicket } from '../guest/shell-tickets.ts'
import { findKeyCaller } from '../users/find-by-key.ts'
import { findOauthCaller } from '../users/introspect.ts'
import { findSessionCaller } from '../users/session.ts'
import type { Access, Caller, CredentialPlace } from './caller.ts'

type Kind = 'session' | 'oauth' | 'key' | 'query'
/** Each header, its kind of credential, and the message when the credential is not valid. */
const HEADERS: [string, Kind, string][] = [
  ['x-auth-token', 'session', 'invalid session token'],
  ['x-access-token', 'oauth', 'invalid access token'],
  ['x-api-key', 'key', 'invalid api key'],
]
export const CREDENTIAL_HEADERS: readonly string[] = HEADERS.map(([header]) => header)

/** `beforeLookup` is called when the credential is missing or was not valid recently, and may throw. */
export type AuthenticateOptions = { place: CredentialPlace | undefined; beforeLookup: () => void }
type Lookup = Pick<AuthenticateOptions, 'beforeLookup'> & { kind: Kind; credential: string; message: string }

/** Returns the caller without a promise when the credential is cached: creating promises costs more than the lookup. */
export function authenticate(
  deps: Deps,
  request: Pick<FastifyRequest, 'headers' | 'query' | 'params'>,
  { place, beforeLookup }: AuthenticateOptions,
): Caller | Promise<Caller> {
  for (const [header, kind, message] of HEADERS) {
    const credential = request.headers[header]
    if (typeof credential !== 'string' || credential === '') continue
    return getCaller(deps, { kind, credential, message, beforeLookup })
  }
  const bearer = place === 'bearer' ? /^bearer +(\S+)$/i.exec(request.headers.authorization ?? '')?.[1] : undefined
  if (bearer !== undefined) {
    return getCaller(deps, { kind: 'key', credential: bearer, message: 'invalid api key', beforeLookup })
  }
  const ticket = place === 'query' ? shellTicketOf(request) : undefined
  if (ticket !== undefined) {
    beforeLookup()
    const { id } = request.params as { id: string }
    return takeShellTicket(deps, ticket, id).then((caller) => requireCaller(caller, 'invalid ticket'))
  }
  const token = place === 'query' ? shellWsToken(request.query as ShellWsQuery) : undefined
  if (token !== undefined) {
    return getCaller(deps, { kind: 'query', credential: token, message: 'invalid token', beforeLookup })
  }
  beforeLookup()
  throw unauthorized('missing credential, send X-Api-Key')
}

function getCaller(deps: Deps, lookup: Lookup): Caller | Promise<Caller> {
  const digest = hash('sha256', lookup.credential, 'hex')
  const key = `${lookup.kind} ${digest}`
  const cached = deps.credentials.get(key)
  if (cached) return cached
  if (!deps.credentials.wasValid(key)) lookup.beforeLookup()
  return findCaller(deps, lookup, digest).then((found) => {
    const caller = requireCaller(found, lookup.message)
    deps.credentials.rememberValid(key)
    return caller
  })
}

const shellTicketOf = ({ query, headers }: Pick<FastifyRequest, 'headers' | 'query'>): string | undefined =>
  shellWsTicket(query as ShellWsQuery, headers['sec-websocket-protocol'])

function requireCaller(caller: Caller | undefined, message: string): Caller {
  if (!caller) throw unauthorized(message)
  return caller
}

async function findCaller(deps: Deps, { kind, credential }: Lookup, digest: string): Promise<Caller | undefined> {
  if (!credential.startsWith(ACCESS_TOKEN_PREFIX)) {
    return deps.credentials.find(`${kind} ${digest}`, () => lookUp(deps, kind, credential, digest))
  }
  // Valid in X-Api-Key only. Sent elsewhere, it must not even reach the users service or the OAuth server.
  return kind === 'key' ? findTokenCaller(deps, digest) : undefined
}

async function lookUp(deps: Deps, kind: Kind, credential: string, digest: string) {
  const bytes = Buffer.from(digest, 'hex')
  if (kind === 'key') return { caller: await findKeyCaller(deps, bytes) }
  if (kind === 'session') return findSessionCaller(deps, credential)
  if (kind === 'oauth') return findOauthCaller(deps, credential)
  return findUserCaller(deps, credential, bytes)
}

/** A query parameter does not say what kind of credential it holds, so all kinds are tried. */
async function findUserCaller(deps: Deps, credential: string, bytes: Buffer) {
  const caller = await findKeyCaller(deps, bytes)
  if (caller) return { caller }
  const session = await findSessionCaller(deps, credential)
  return session.caller ? session : findOauthCaller(deps, credential)
}

/** Throws if the caller may not use the route. Another user's sandbox is absent (404) before a route is forbidden (403). */
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
