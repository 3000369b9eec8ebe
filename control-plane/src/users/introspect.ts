/** Identifies the user of an OAuth access token by token introspection (RFC 7662). */
import { upstreamUnavailable } from '@warren/kit/failure'
import type { Deps } from '../deps.ts'
import type { Caller } from '../http/caller.ts'
import { callService, isRecord } from './call-service.ts'
import { findOrCreateExternalUser } from './create.ts'
import { toCallerUser } from './find-by-key.ts'

export async function findOauthCaller(
  deps: Deps,
  token: string,
): Promise<{ caller: Caller | undefined; ttlMs?: number }> {
  const { introspectionUrl: url, introspectionClientId: id, introspectionClientSecret: secret } = deps.config
  if (url === undefined) return { caller: undefined }
  const { body } = await callService('token introspection', url, {
    method: 'POST',
    headers: { accept: 'application/json', ...(id === '' ? {} : { authorization: basic(id, secret) }) },
    body: new URLSearchParams({ token, token_type_hint: 'access_token' }),
  })
  if (!isRecord(body) || typeof body.active !== 'boolean') {
    throw upstreamUnavailable('token introspection unavailable')
  }
  if (!body.active) return { caller: undefined }
  if (typeof body.sub !== 'string' || body.sub === '') {
    throw upstreamUnavailable('token introspection unavailable', { cause: new Error('response has no sub') })
  }
  const ttlMs = typeof body.exp === 'number' ? body.exp * 1000 - deps.now().getTime() : undefined
  if (ttlMs !== undefined && ttlMs <= 0) return { caller: undefined }
  const user = await findOrCreateExternalUser(deps.db, `oauth:${body.sub}`)
  const caller = { kind: 'user' as const, user: toCallerUser(deps, user), credential: 'OAuth access token' }
  return { caller, ...(ttlMs === undefined ? {} : { ttlMs }) }
}

const basic = (id: string, secret: string): string =>
  `Basic ${Buffer.from(`${encodeURIComponent(id)}:${encodeURIComponent(secret)}`).toString('base64')}`
