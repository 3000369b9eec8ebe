import assert from 'node:assert/strict'
import { Agent, type OutgoingHttpHeaders, request } from 'node:http'
import net from 'node:net'
import { test } from 'node:test'
import { Failure, Fault } from '@warren/kit/failure'
import {
  ErrorEnvelope,
  FAILURE_STATUS,
  FailEnvelope,
  type FailureCode,
  ok,
  SERVER_FAULT_STATUS,
  type ServerFault,
} from '@warren/protocol'
import { Type } from 'typebox'
import { Value } from 'typebox/value'
import { createTestApp, listenOn } from '../testing/app.ts'
import { LARGE_JSON_BODY_MAX_BYTES } from './body.ts'

const KIB = 1024

const { app, get } = await createTestApp({
  routes: (app) => {
    const config = { access: 'public' } as const
    app.get('/throw/:code', { config }, async (request) => {
      const { code } = request.params as { code: FailureCode }
      throw new Failure(code, { message: `this is ${code}` }, { retryAfterSeconds: 2 })
    })
    app.get('/fault/:kind', { config }, async (request) => {
      const { kind } = request.params as { kind: ServerFault }
      throw new Fault(kind, `this is ${kind}`, { cause: new Error('secret cause') })
    })
    app.get('/bug', { config }, async () => {
      throw new TypeError('select password from users at /home/warren/secret.ts')
    })
    app.post(
      '/echo',
      { config, schema: { body: Type.Object({ n: Type.Optional(Type.Integer()) }) } },
      async (request) => ok({ body: request.body }),
    )
    app.post('/echo-large', { config, bodyLimit: LARGE_JSON_BODY_MAX_BYTES }, async () => ok({}))
    app.get(
      '/query',
      { config, schema: { querystring: Type.Object({ q: Type.Optional(Type.String()) }) } },
      async (r) => ok(r.query),
    )
    app.get('/segments/:segment', { config }, async (request) => ok(request.params))
  },
})

const { port } = await listenOn(app)

const post = async (payload: string | undefined, headers: Record<string, string> = {}) => {
  const response = await app.inject({
    method: 'POST',
    url: '/echo',
    headers,
    ...(payload === undefined ? {} : { payload }),
  })
  return { status: response.statusCode, body: response.json() }
}

test('every failure code has its status and a fail envelope of strings', async () => {
  for (const [code, status] of Object.entries(FAILURE_STATUS)) {
    const response = await get(`/throw/${code}`)
    assert.equal(response.status, status, code)
    assert.ok(Value.Check(FailEnvelope, response.body), code)
    assert.deepEqual(response.body.data, { message: `this is ${code}`, code })
    assert.equal(response.headers['retry-after'], '2')
  }
})

test('every server fault has its status and text and does not reveal its cause', async () => {
  for (const [kind, status] of Object.entries(SERVER_FAULT_STATUS)) {
    const response = await get(`/fault/${kind}`)
    assert.equal(response.status, status)
    assert.ok(Value.Check(ErrorEnvelope, response.body))
    assert.deepEqual(response.body, { status: 'error', message: `this is ${kind}`, code: status })
  }
})

test('an unexpected error is 500 and reveals no details', async () => {
  const response = await get('/bug')

  assert.deepEqual([response.status, response.body], [500, { status: 'error', message: 'internal error', code: 500 }])
})

test('every response has a request id, even without a route', async () => {
  for (const path of ['/healthz', '/v1/whoami', '/nowhere', '/bug', '/%zz', '/v1/shapes?limit=x']) {
    assert.match(String((await get(path)).headers['x-request-id']), /^[\w.:-]{1,128}$/, path)
  }
})

test('a request id of the client is used if it is safe to log', async () => {
  const accepted = await app.inject({ url: '/healthz', headers: { 'x-request-id': 'trace-42' } })
  const replaced = await app.inject({ url: '/healthz', headers: { 'x-request-id': 'a b"c' } })

  assert.equal(accepted.headers['x-request-id'], 'trace-42')
  assert.notEqual(replaced.headers['x-request-id'], 'a b"c')
})

test('an unknown route, an unknown method and a malformed path get JSON responses', async () => {
  assert.deepEqual((await get('/nowhere')).body.data, { message: 'route not found', code: 'not_found' })
  assert.equal((await app.inject({ method: 'DELETE', url: '/v1/shapes' })).statusCode, 404)
  assert.deepEqual((await get('/%zz')).body.data, { url: 'is not a valid path', code: 'validation_failed' })
})

test('no body, an empty body, null and an empty object are equal, whatever the content type', async () => {
  for (const payload of [undefined, '', ' ', 'null', '{}']) {
    for (const type of [undefined, 'application/json', 'text/plain', 'application/x-www-form-urlencoded', 'nonsense']) {
      const response = await post(payload, type === undefined ? {} : { 'content-type': type })
      assert.deepEqual([response.status, response.body.data], [200, { body: {} }], `${payload} as ${type}`)
    }
  }
})

test('JSON is parsed whatever the content type', async () => {
  for (const type of ['application/json', 'text/plain', 'application/octet-stream', 'a;b;c']) {
    assert.deepEqual((await post('{"n":1}', { 'content-type': type })).body.data, { body: { n: 1 } })
  }
})

test('an error in the body names the field or says that it is not JSON', async () => {
  assert.deepEqual((await post('{"n":')).body.data, { body: 'is not valid JSON', code: 'validation_failed' })
  assert.deepEqual((await post('[1]')).body.data, { body: 'must be object', code: 'validation_failed' })
  assert.deepEqual((await post('{"n":"1"}')).body.data, { n: 'must be integer', code: 'validation_failed' })
  assert.deepEqual((await post('{"n":null}')).body.data, { n: 'must be integer', code: 'validation_failed' })
})

test('a key called __proto__ is rejected, at any depth and also when it is escaped', async () => {
  const refused = { body: 'must not contain the key __proto__', code: 'validation_failed' }
  for (const body of [
    '{"n":1,"__proto__":{"polluted":true}}',
    '{"n":1,"a":[{"__proto__":null}]}',
    '{"\\u005f\\u005fproto\\u005f\\u005f" : 1}',
  ]) {
    const response = await post(body)
    assert.deepEqual([response.status, response.body.data], [400, refused], body)
  }
  assert.equal((await post('{"n":1,"text":"__proto__","constructor":{"prototype":1}}')).status, 200)
})

test('a JSON body over 256 KiB is 400, and over 4 MiB on routes for large ones', async () => {
  const bodyOf = (bytes: number) => JSON.stringify({ pad: 'x'.repeat(bytes) })
  const statuses = []
  for (const [url, bytes] of [
    ['/echo', 255 * KIB],
    ['/echo', 256 * KIB],
    ['/echo-large', 4095 * KIB],
    ['/echo-large', 4096 * KIB],
  ] as const) {
    const response = await app.inject({ method: 'POST', url, payload: bodyOf(bytes) })
    statuses.push([response.statusCode, response.json().data.code])
  }

  assert.deepEqual(statuses, [
    [200, undefined],
    [400, 'validation_failed'],
    [200, undefined],
    [400, 'validation_failed'],
  ])
})

test('a client that is still sending an oversized body gets the response, and the connection stays usable', async () => {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  const send = (headers: OutgoingHttpHeaders, mib: number) =>
    new Promise<string>((resolve, reject) => {
      const call = request({ agent, port, method: 'POST', path: '/echo', headers }, (response) => {
        response.resume().once('end', () => resolve(`${response.statusCode} ${response.headers.connection}`))
      })
      call.once('error', reject)
      for (let sent = 0; sent < mib; sent++) call.write(Buffer.alloc(1024 * 1024, ' '))
      call.end()
    })

  for (const headers of [{ 'content-length': 24 * 1024 * 1024 }, { 'transfer-encoding': 'chunked' }]) {
    assert.equal(await send(headers, 24), '400 keep-alive')
    assert.equal(await send({}, 0), '200 keep-alive')
  }
  agent.destroy()
})

test('in queries + is a space, %2B a plus, and an empty value counts as absent', async () => {
  assert.deepEqual((await get('/query?q=a+b')).body.data, { q: 'a b' })
  assert.deepEqual((await get('/query?q=a%2Bb')).body.data, { q: 'a+b' })
  assert.deepEqual((await get('/query?q=')).body.data, {})
  assert.deepEqual((await get('/query?q=1&q=2&other=3')).body.data, { q: '1', other: '3' })
})

test('path segments are decoded once', async () => {
  assert.deepEqual((await get('/segments/sb%2Dx')).body.data, { segment: 'sb-x' })
  assert.deepEqual((await get('/segments/a%2Fb')).body.data, { segment: 'a/b' })
  assert.deepEqual((await get('/segments/a%252Fb')).body.data, { segment: 'a%2Fb' })
})

test('a trailing slash leads to the same route, without a redirect', async () => {
  assert.equal((await get('/v1/shapes/')).status, 200)
})

test('bytes that are not HTTP get a JSON 400, and the connection is closed', async () => {
  const socket = net.connect(port, '127.0.0.1')
  let received = ''
  socket.on('data', (chunk) => {
    received += chunk
  })
  const closed = new Promise((resolve) => socket.once('close', resolve))

  socket.write('\x16\x03\x01 hello, is this TLS?\r\n\r\n')
  await closed

  assert.match(received, /^HTTP\/1\.1 400 /)
  assert.match(received, /X-Request-Id: \w+/)
  assert.match(
    received,
    /\{"status":"fail","data":\{"message":"this is not an HTTP request","code":"validation_failed"\}\}$/,
  )
})

test('with a path in the base URL, requests are served with and without that path', async () => {
  const prefixed = await createTestApp({ config: { baseUrl: 'https://example.com/sandbox-api' } })

  for (const path of ['/healthz', '/sandbox-api/healthz', '/sandbox-api/v1/shapes?limit=1']) {
    assert.equal((await prefixed.get(path)).status, 200, path)
  }
  assert.equal((await prefixed.get('/sandbox-apiary/healthz')).status, 404)
})
