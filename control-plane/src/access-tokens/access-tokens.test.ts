import assert from 'node:assert/strict'
import { once } from 'node:events'
import { request as httpRequest, type IncomingMessage } from 'node:http'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { accessTokenHint } from '@warren/protocol'
import { createTestApp, listenOn, reconnect, type TestUser } from '../testing/app.ts'
import { insertSandbox } from '../testing/sandboxes.ts'
import { createHostedApp } from '../testing/with-host.ts'

const { app, deps, host, user, create, send, get } = await createHostedApp()
const ada = await user({ plan: 'local' })
const { port } = await listenOn(app)
// A second control plane on the same database, with the same host.
const second = await createTestApp({ database: reconnect(deps.database), config: { hostSocket: host.socket } })
const { port: secondPort } = await listenOn(second.app)

const tokenPath = (id: string) => `/v1/sandboxes/${id}/access-token`
const issue = async (id: string, verb = ''): Promise<string> =>
  (await send('POST', `${tokenPath(id)}${verb}`, ada)).body.data.token
const asToken = (id: string, token: string) => ({ url: `/v1/sandboxes/${id}`, headers: { 'x-api-key': token } })
const newSandbox = async (): Promise<string> => (await create(ada)).body.data.id

async function open(method: string, path: string, key: string, body: string | undefined, at = port) {
  const request = httpRequest({ port: at, method, path, headers: { 'x-api-key': key }, agent: false })
  request.on('error', () => {})
  if (body === undefined) request.flushHeaders()
  else request.end(body)
  return request
}

/** A command that prints something and then nothing for a long while. */
async function openExec(id: string, key: string, at = port) {
  const body = JSON.stringify({ cmd: 'sh', args: ['-c', 'echo started; sleep 60'] })
  const request = await open('POST', `/v1/sandboxes/${id}/exec?stream=true`, key, body, at)
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  response.on('error', () => {})
  await once(response, 'data')
  return response
}

/** Within the 5 s in which the streams of a revoked token must end. */
const isClosed = (stream: { closed: boolean }) => until(() => stream.closed, 'the stream is closed', 5_000)

test('a token is shown once, afterwards only its hint', async () => {
  const id = await newSandbox()

  const made = await send('POST', tokenPath(id), ada)
  const seen = await send('GET', tokenPath(id), ada)

  const { token, enabled, created_at } = made.body.data
  assert.match(token, /^skp_sb_[0-9a-f]{64}$/)
  assert.deepEqual([made.status, enabled], [200, true])
  assert.deepEqual(seen.body.data, { enabled: true, token_hint: accessTokenHint(token), created_at })
  const [head, tail] = seen.body.data.token_hint.split('...')
  assert.ok(token.startsWith(head) && token.endsWith(tail))
})

test('the token itself is not stored', async () => {
  const token = await issue(await newSandbox())

  const rows = await deps.db.selectFrom('access_tokens').selectAll().execute()

  assert.ok(!JSON.stringify(rows.map((row) => ({ ...row, hash: row.hash.toString('latin1') }))).includes(token))
})

test('there is one token at a time: a second is 409, a rotation replaces it, a disabled one can be created again', async () => {
  const id = await newSandbox()
  const first = await issue(id)

  const again = await send('POST', tokenPath(id), ada)
  assert.deepEqual(
    [again.status, again.body.data],
    [409, { message: 'access token already enabled', code: 'token_exists' }],
  )

  const rotated = await send('POST', `${tokenPath(id)}/rotate`, ada)
  assert.deepEqual(Object.keys(rotated.body.data).sort(), ['created_at', 'enabled', 'rotated_at', 'token'])
  assert.notEqual(rotated.body.data.token, first)
  assert.ok((await send('GET', tokenPath(id), ada)).body.data.rotated_at)

  assert.deepEqual((await send('DELETE', tokenPath(id), ada)).body.data, { enabled: false })
  assert.deepEqual((await send('DELETE', tokenPath(id), ada)).body.data, { enabled: false })
  assert.deepEqual((await send('GET', tokenPath(id), ada)).body.data, { enabled: false })
  await issue(id)
  assert.equal((await send('GET', tokenPath(id), ada)).body.data.rotated_at, undefined)
})

test('a rotation without a token is not found', async () => {
  const { status, body } = await send('POST', `${tokenPath(await newSandbox())}/rotate`, ada)

  assert.deepEqual([status, body.data], [404, { message: 'access token not found', code: 'not_found' }])
})

test('tokens are issued only in the states that allow it', async () => {
  for (const status of ['running', 'pausing', 'paused', 'resuming', 'forking', 'error'] as const) {
    const { id } = await insertSandbox(deps.db, ada.id, status)
    const answers = [await send('POST', tokenPath(id), ada), await send('POST', `${tokenPath(id)}/rotate`, ada)]
    assert.deepEqual(
      answers.map((answer) => answer.status),
      [200, 200],
      status,
    )
  }
  for (const status of ['creating', 'destroying', 'destroyed', 'failed'] as const) {
    const { id } = await insertSandbox(deps.db, ada.id, status)
    for (const path of [tokenPath(id), `${tokenPath(id)}/rotate`]) {
      const { status: code, body } = await send('POST', path, ada)
      const expected = 'running or pausing or paused or resuming or forking or error'
      assert.deepEqual(
        [code, body.data],
        [409, { message: `sandbox is ${status}, expected ${expected}`, code: 'token_lifecycle' }],
        `${status} ${path}`,
      )
    }
    assert.deepEqual((await send('DELETE', tokenPath(id), ada)).body.data, { enabled: false }, status)
  }
})

test('of concurrent creates and rotations only the last token is valid', async () => {
  const id = await newSandbox()

  const created = await Promise.all([1, 2, 3, 4].map(() => send('POST', tokenPath(id), ada)))
  assert.deepEqual(created.map((answer) => answer.status).sort(), [200, 409, 409, 409])

  const rotated = await Promise.all([1, 2, 3, 4].map(() => send('POST', `${tokenPath(id)}/rotate`, ada)))
  const opens = await Promise.all(rotated.map(({ body }) => get(`/v1/sandboxes/${id}`, body.data.token)))
  assert.deepEqual(opens.map((answer) => answer.status).sort(), [200, 401, 401, 401])
})

test('a disabled token is rejected by every process that has seen it', async () => {
  const id = await newSandbox()
  const token = await issue(id)
  const statuses = () =>
    Promise.all([get, second.get].map(async (read) => (await read(`/v1/sandboxes/${id}`, token)).status))
  assert.deepEqual(await statuses(), [200, 200])

  await send('DELETE', tokenPath(id), ada)

  await until(async () => (await statuses()).every((status) => status === 401), 'every request is rejected', 2_000)
})

test('destroying a sandbox revokes its token, even if the token was used for it', async () => {
  const id = await newSandbox()
  const token = await issue(id)
  const bearer = { headers: { 'x-api-key': token } } as TestUser

  assert.equal((await send('DELETE', `/v1/sandboxes/${id}`, bearer)).body.data.status, 'destroying')

  await until(async () => (await get(`/v1/sandboxes/${id}`, token)).status === 401)
  assert.deepEqual((await send('GET', tokenPath(id), ada)).body.data, { enabled: false })
})

test('a token is accepted in X-Api-Key only', async () => {
  const id = await newSandbox()
  const token = await issue(id)
  const path = `/v1/sandboxes/${id}`

  for (const headers of [
    { 'x-auth-token': token },
    { 'x-access-token': token },
    { authorization: `Bearer ${token}` },
    { 'x-auth-token': token, ...ada.headers },
  ]) {
    const { statusCode, body } = await app.inject({ url: path, headers })
    assert.equal(statusCode, 401, `${Object.keys(headers)} ${body}`)
  }
  for (const name of ['token', 'access_token', 'api_key', 'x-api-key']) {
    assert.equal((await app.inject(`${path}?${name}=${token}`)).statusCode, 401, name)
  }
})

test('a token is invalid in every process once its disable or rotation has returned', async () => {
  const id = await newSandbox()
  const use = async (token: string) =>
    Promise.all([app, second.app].map(async (one) => (await one.inject(asToken(id, token))).statusCode))

  for (const verb of ['rotate', 'disable', 'rotate', 'disable', 'rotate', 'disable']) {
    const token = await issue(id)
    assert.deepEqual(await use(token), [200, 200])

    if (verb === 'rotate') await issue(id, '/rotate')
    else await send('DELETE', tokenPath(id), ada)

    assert.deepEqual(await use(token), [401, 401], verb)
    await send('DELETE', tokenPath(id), ada)
  }
})

test('disable and rotation end the open requests of the token in every process, and none of the owner', async () => {
  for (const verb of ['disable', 'rotate']) {
    const id = await newSandbox()
    const token = await issue(id)
    const streams = [await openExec(id, token), await openExec(id, token, secondPort)]
    const owners = await openExec(id, ada.key)
    const upload = await open('PUT', `/v1/sandboxes/${id}/files?path=/half`, token, undefined)
    upload.write('half a file')
    await until(() => host.calls.includes(`PUT /v1/vms/${id}/guest/files`))

    if (verb === 'disable') await send('DELETE', tokenPath(id), ada)
    else await issue(id, '/rotate')

    await Promise.all([...streams, upload].map(isClosed))
    assert.deepEqual(
      streams.map((stream) => stream.complete),
      [false, false],
    )
    assert.equal(owners.closed, false)
    await until(() => host.vms.get(id)!.guest.commands.size === 1)
    owners.destroy()
  }
})

test('a process that gets no notification finds a revoked token by polling', async () => {
  const deaf = await createTestApp({
    database: reconnect(deps.database),
    config: { hostSocket: host.socket },
    watchCredentials: false,
  })
  const { port: deafPort } = await listenOn(deaf.app)
  const id = await newSandbox()
  const stream = await openExec(id, await issue(id), deafPort)

  await send('DELETE', tokenPath(id), ada)

  await isClosed(stream)
  assert.equal(stream.complete, false)
})

test('a request that has ended is no longer tracked', async () => {
  const id = await newSandbox()
  const token = await issue(id)
  const left = new Set<() => void>()
  const { add } = deps.tokenStreams
  deps.tokenStreams.add = (hash, end) => {
    const remove = add(hash, end)
    left.add(remove)
    return () => {
      left.delete(remove)
      remove()
    }
  }

  const agent = { headers: { 'x-api-key': token } }
  for (let i = 0; i < 20; i++) await (await fetch(`http://127.0.0.1:${port}/v1/sandboxes/${id}`, agent)).text()
  const exec = await openExec(id, token)
  assert.equal(left.size, 1)
  exec.destroy()

  await until(() => left.size === 0)
  deps.tokenStreams.add = add
})
