import assert from 'node:assert/strict'
import { hash, randomBytes } from 'node:crypto'
import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { ok, success, Whoami } from '@warren/protocol'
import type { App } from '../http/server.ts'
import { createTestApp, reconnect } from '../testing/app.ts'
import { insertSandbox } from '../testing/sandboxes.ts'
import { revokeApiKey } from '../users/keys.ts'
import { whoami } from '../users/whoami.ts'

/** An HTTP service that responds as the test says and records the requests it gets. */
async function startService(listener: RequestListener) {
  const requests: string[] = []
  const server = createServer((request, response) => {
    requests.push(request.url ?? '')
    listener(request, response)
  })
  server.listen(0, '127.0.0.1')
  await new Promise((resolve) => server.once('listening', resolve))
  after(() => server.close())
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/me`, requests, server }
}

const usersService = await startService((request, response) => {
  const token = request.headers['x-auth-token']
  if (token === 'down') return void response.writeHead(500).end('oh no')
  if (token === 'garbage') return void response.end('<html>')
  if (token === 'hangs') return
  if (token === 'redirects') return void response.writeHead(302, { location: '/elsewhere' }).end()
  if (token !== 'good-session') return void response.writeHead(401).end()
  response.end(JSON.stringify({ status: 'success', data: { user_id: 'ada' } }))
})

const introspection = await startService((request, response) => {
  let body = ''
  request.on('data', (chunk) => {
    body += chunk
  })
  request.on('end', () => {
    const authorized = request.headers.authorization === `Basic ${Buffer.from('warren:s3cret').toString('base64')}`
    const token = new URLSearchParams(body).get('token')
    if (!authorized) return response.writeHead(401).end()
    if (token === 'expired') return response.end(JSON.stringify({ active: true, sub: 'eve', exp: 1 }))
    response.end(JSON.stringify(token === 'good-oauth' ? { active: true, sub: 'eve' } : { active: false }))
  })
})

const { app, deps, user, get } = await createTestApp({
  config: {
    usersServiceUrl: usersService.url,
    introspectionUrl: introspection.url,
    introspectionClientId: 'warren',
    introspectionClientSecret: 's3cret',
  },
  // A route under one sandbox that only users may call, like fork.
  routes: (app: App) => {
    app.post(
      '/v1/sandboxes/:id/users-only',
      { config: { access: 'user' }, schema: { response: { 200: success(Whoami) } } },
      async (request) => ok(await whoami(deps, request.caller)),
    )
  },
})

const someone = await user()
const operator = await user({ operator: true })
const sandbox = await insertSandbox(deps.db, someone.id)
const foreign = await insertSandbox(deps.db, operator.id)
const accessToken = `skp_sb_${randomBytes(32).toString('hex')}`
await deps.db
  .insertInto('access_tokens')
  .values({ sandbox_id: sandbox.id, hash: Buffer.from(hash('sha256', accessToken, 'hex'), 'hex'), hint: 'x' })
  .execute()

const send = async (path: string, headers: Record<string, string>, method: 'GET' | 'POST' = 'GET') => {
  const response = await app.inject({ method, url: path, headers })
  return { status: response.statusCode, body: response.json() }
}

test('each kind of credential gives access to what it should and nothing else', async () => {
  const credentials: Record<string, Record<string, string>> = {
    nothing: {},
    'a wrong key': { 'x-api-key': 'skp_wrong' },
    'a key': someone.headers,
    "an operator's key": operator.headers,
    'a session': { 'x-auth-token': 'good-session' },
    'a wrong session': { 'x-auth-token': 'wrong' },
    'an oauth token': { 'x-access-token': 'good-oauth' },
    'an inactive oauth token': { 'x-access-token': 'wrong' },
    'an expired oauth token': { 'x-access-token': 'expired' },
    'an access token': { 'x-api-key': accessToken },
    'an access token as session': { 'x-auth-token': accessToken },
    'an access token as oauth': { 'x-access-token': accessToken },
    'a JWT as key': { 'x-api-key': 'eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln' },
    'a bearer token': { authorization: `Bearer ${someone.key}` },
  }
  const routes = ['/v1/shapes', '/v1/whoami', '/v1/hosts', `/v1/sandboxes/${sandbox.id}`]
  const table: Record<string, number[]> = {}

  for (const [name, headers] of Object.entries(credentials)) {
    table[name] = []
    for (const path of routes) table[name].push((await send(path, headers)).status)
  }

  assert.deepEqual(table, {
    //                              public user operator own sandbox
    nothing: [200, 401, 401, 401],
    'a wrong key': [200, 401, 401, 401],
    'a key': [200, 200, 403, 200],
    "an operator's key": [200, 200, 200, 404],
    'a session': [200, 200, 403, 404],
    'a wrong session': [200, 401, 401, 401],
    'an oauth token': [200, 200, 403, 404],
    'an inactive oauth token': [200, 401, 401, 401],
    'an expired oauth token': [200, 401, 401, 401],
    'an access token': [200, 403, 403, 200],
    'an access token as session': [200, 401, 401, 401],
    'an access token as oauth': [200, 401, 401, 401],
    'a JWT as key': [200, 401, 401, 401],
    'a bearer token': [200, 401, 401, 401],
  })
})

test('a 401 names the missing header and never says which part of a credential was wrong', async () => {
  assert.deepEqual((await get('/v1/whoami')).body, {
    status: 'fail',
    data: { auth: 'missing credential, send X-Api-Key', code: 'unauthorized' },
  })
  assert.deepEqual((await get('/v1/whoami', 'skp_unknown')).body, {
    status: 'fail',
    data: { auth: 'invalid api key', code: 'unauthorized' },
  })
})

test('an access token finds no other sandbox and may not call routes for the owner', async () => {
  const headers = { 'x-api-key': accessToken }

  assert.equal((await send(`/v1/sandboxes/${foreign.id}`, headers)).status, 404)
  assert.equal((await send(`/v1/sandboxes/${foreign.id}/users-only`, headers, 'POST')).status, 404)
  const own = await send(`/v1/sandboxes/${sandbox.id}/users-only`, headers, 'POST')
  assert.equal(own.status, 403)
  assert.equal(own.body.data.code, 'token_not_allowed')
  assert.equal((await send('/v1/hosts', headers)).body.data.code, 'token_not_allowed')
})

test('the access token of a destroyed sandbox is not valid', async () => {
  const destroyed = await insertSandbox(deps.db, someone.id, 'destroyed')
  const token = `skp_sb_${randomBytes(32).toString('hex')}`
  await deps.db
    .insertInto('access_tokens')
    .values({ sandbox_id: destroyed.id, hash: Buffer.from(hash('sha256', token, 'hex'), 'hex'), hint: 'x' })
    .execute()

  assert.equal((await send(`/v1/sandboxes/${destroyed.id}`, { 'x-api-key': token })).status, 401)
})

test('of several credentials the first by precedence decides, and the others are not tried', async () => {
  const good = { 'x-auth-token': 'good-session', 'x-access-token': 'good-oauth', ...someone.headers }
  const session = await send('/v1/whoami', good)
  const oauth = await send('/v1/whoami', { 'x-access-token': 'good-oauth', ...someone.headers })

  assert.notEqual(session.body.data.user_id, oauth.body.data.user_id)
  assert.notEqual(oauth.body.data.user_id, someone.id)
  assert.equal((await send('/v1/whoami', { 'x-auth-token': 'wrong', ...someone.headers })).status, 401)
  assert.equal((await send('/v1/whoami', { 'x-access-token': 'wrong', ...someone.headers })).status, 401)
})

test('concurrent first requests of a user of the users service create one account', async () => {
  const responses = await Promise.all(
    Array.from({ length: 10 }, () => send('/v1/whoami', { 'x-auth-token': 'good-session' })),
  )

  assert.equal(new Set(responses.map((response) => response.body.data.user_id)).size, 1)
  const row = await deps.db
    .selectFrom('users')
    .selectAll()
    .where('external_id', '=', 'session:ada')
    .executeTakeFirstOrThrow()
  assert.deepEqual([row.plan, row.credit_micro, row.operator], ['free', 500_000_000, false])
})

test('a session is checked once, not for every request', async () => {
  await send('/v1/whoami', { 'x-auth-token': 'good-session' })
  const before = usersService.requests.length

  for (let i = 0; i < 5; i++) await send('/v1/whoami', { 'x-auth-token': 'good-session' })

  assert.equal(usersService.requests.length, before)
})

test('a users service that fails, redirects or responds with garbage is 502, never 401', async () => {
  for (const token of ['down', 'garbage', 'redirects']) {
    const { status, body } = await send('/v1/whoami', { 'x-auth-token': token })
    assert.deepEqual(
      [token, status, body],
      [token, 502, { status: 'error', message: 'users service unavailable', code: 502 }],
    )
  }
})

test('a users service that does not respond is 502 within its time limit', async () => {
  const { status } = await send('/v1/whoami', { 'x-auth-token': 'hangs' })

  assert.equal(status, 502)
})

test('an access token in the wrong header never reaches the users service', async () => {
  const before = usersService.requests.length + introspection.requests.length

  await send('/v1/whoami', { 'x-auth-token': accessToken })
  await send('/v1/whoami', { 'x-access-token': accessToken })

  assert.equal(usersService.requests.length + introspection.requests.length, before)
})

test('a revoked key is rejected by every process, even if it was cached', async () => {
  const other = await createTestApp({ database: reconnect(deps.database) })
  const victim = await user()
  for (const getFrom of [get, other.get]) assert.equal((await getFrom('/v1/whoami', victim.key)).status, 200)

  await revokeApiKey(deps.db, victim.keyId, new Date())

  for (const getFrom of [get, other.get])
    await until(async () => (await getFrom('/v1/whoami', victim.key)).status === 401)
})

test('a new operator has the rights of one at the next request', async () => {
  const promoted = await user()
  assert.equal((await get('/v1/hosts', promoted.key)).status, 403)

  await deps.db.updateTable('users').set({ operator: true }).where('id', '=', promoted.id).execute()

  await until(async () => (await get('/v1/hosts', promoted.key)).status === 200)
})

test('an operator can be named in the configuration', async () => {
  const named = await createTestApp({ config: { operators: ['ada-lovelace'] } })
  const ada = await named.user({ name: 'ada-lovelace' })

  assert.equal((await named.get('/v1/hosts', ada.key)).status, 200)
})

test('without a users service or introspection, session and OAuth tokens are not valid', async () => {
  const bare = await createTestApp()

  for (const header of ['x-auth-token', 'x-access-token']) {
    const response = await bare.app.inject({ url: '/v1/whoami', headers: { [header]: 'good-session' } })
    assert.equal(response.statusCode, 401)
  }
})
