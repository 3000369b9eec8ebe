/** Requests that are refused cost little, whatever their size and speed. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import http from 'node:http'
import net from 'node:net'
import { test } from 'node:test'
import { ok } from '@warren/protocol'
import { createTestApp, listenOn } from '../testing/app.ts'

const MIB = 1024 * 1024
const { app, user } = await createTestApp({
  config: { jsonBodySeconds: 1 },
  routes: (app) => {
    app.post('/echo', { config: { access: 'user' } }, async () => ok({}))
    app.post('/parsed', { config: { access: 'public' }, bodyLimit: MIB }, async () => ok({}))
  },
})
const { port } = await listenOn(app)
const { key } = await user()

type Sent = { path: string; method?: string; headers?: http.OutgoingHttpHeaders; body?: Buffer }

/** Resolves with the status, also if the connection is closed while the body is still being sent. */
function send({ path, headers = {}, body, method = body ? 'POST' : 'GET' }: Sent): Promise<number> {
  const { promise, resolve, reject } = Promise.withResolvers<number>()
  const request = http.request({ port, host: '127.0.0.1', method, path, headers, agent: false }, (response) => {
    resolve(response.statusCode ?? 0)
    response.resume().once('close', () => request.destroy())
  })
  request.once('error', reject)
  request.end(body)
  return promise
}

async function cpuOf(work: () => Promise<unknown>): Promise<number> {
  const before = process.cpuUsage()
  await work()
  const { user, system } = process.cpuUsage(before)
  return user + system
}

const median = (numbers: number[]): number => numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)]!

/** One JSON object of about this size with as many keys as possible, which is the most expensive to parse. */
const manyKeys = (bytes: number): Buffer =>
  Buffer.from(
    `{${Array.from({ length: Math.floor(bytes / 10) }, (_, i) => `"${i.toString(36).padStart(5, 'k')}":1`).join()}}`,
  )

const probe = async () => {
  for (let i = 0; i < 20; i++) await send({ path: '/healthz' })
}

/** CPU time in µs: medians of the request and of twenty probes, measured in turns. The client, which is in this process, counts. */
async function measure(request: Sent, status: number): Promise<{ request: number; probes: number }> {
  const [requests, probes]: [number[], number[]] = [[], []]
  for (let round = 0; round < 7; round++) {
    probes.push(await cpuOf(probe))
    requests.push(await cpuOf(async () => assert.equal(await send(request), status)))
  }
  return { request: median(requests), probes: median(probes) }
}

const UPGRADES = ['tcp-tunnel', 'websocket', 'h2c'].map((upgrade) => ({ connection: 'Upgrade', upgrade }))

for (const [size, body] of Object.entries({
  '400 KB of JSON': manyKeys(400_000),
  '4 MiB of JSON': manyKeys(4 * MIB),
  '64 MiB of nothing': Buffer.alloc(64 * MIB, ' '),
})) {
  test(`an anonymous request with ${size} costs no more than twenty GETs of /healthz`, async () => {
    const refused: [number, Sent][] = [
      [404, { path: '/nowhere', body }],
      [404, { path: '/nowhere', body, headers: { 'transfer-encoding': 'chunked' } }],
      [401, { path: '/echo', body }],
      [401, { path: '/v1/sandboxes', body, headers: { 'x-api-key': 'skp_wrong' } }],
      [401, { path: '/mcp', body, headers: { 'content-type': 'application/json' } }],
      [401, { path: '/v1/sandboxes/sb-1/files?path=/x', body, method: 'PUT' }],
      ...UPGRADES.map((headers): [number, Sent] => [401, { path: '/v1/sandboxes/sb-1/tunnel/80', body, headers }]),
    ]
    for (const [status, request] of refused) {
      const cost = await measure(request, status)
      const what = `${request.method ?? 'POST'} ${request.path} ${JSON.stringify(request.headers ?? {})}`
      assert.ok(cost.request <= cost.probes, `${what}: ${cost.request} µs, twenty probes ${cost.probes} µs`)
    }
  })
}

test('a body that is parsed before the request is refused would be noticed', async () => {
  const cost = await measure({ path: '/parsed', body: manyKeys(400_000) }, 200)
  assert.ok(cost.request > cost.probes, `${cost.request} µs, twenty probes ${cost.probes} µs`)
})

test('a refused client gets its response, and the connection stays usable after a small body', async () => {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 })
  const post = async (headers: http.OutgoingHttpHeaders, body: Buffer) => {
    const request = http.request({ agent, port, host: '127.0.0.1', method: 'POST', path: '/echo', headers })
    request.end(body)
    const [response] = (await once(request, 'response')) as [http.IncomingMessage]
    await response.toArray()
    return [response.statusCode, request.reusedSocket]
  }
  assert.deepEqual(await post({}, Buffer.alloc(MIB, ' ')), [401, false])
  assert.deepEqual(await post({ 'x-api-key': key }, Buffer.from('{}')), [200, true])
  agent.destroy()
})

test('a client that asks before it sends its body is refused before it sends it', async () => {
  const ask = async (headers: http.OutgoingHttpHeaders) => {
    const request = http.request({
      ...{ port, host: '127.0.0.1', method: 'POST', path: '/echo' },
      headers: { ...headers, expect: '100-continue', 'content-length': 2 },
    })
    let continued = false
    request.once('continue', () => {
      continued = true
      request.end('{}')
    })
    request.flushHeaders()
    const [response] = (await once(request, 'response')) as [http.IncomingMessage]
    await response.toArray()
    request.destroy()
    return [response.statusCode, continued]
  }
  assert.deepEqual(await ask({}), [401, false])
  assert.deepEqual(await ask({ 'x-api-key': key }), [200, true])
})

test('an address that guesses credentials is refused without a lookup, and a cached credential still works', async () => {
  const limited = await createTestApp({ config: { rateLimitPerMinute: 5 } })
  const known = await limited.user()
  await limited.get('/v1/whoami', known.key)
  let lookups = 0
  const { database } = limited.deps
  const named = database.named.bind(database)
  database.named = ((name: string, ...rest: [string, unknown[]]) => {
    if (name === 'find-api-key') lookups++
    return named(name, ...rest)
  }) as typeof database.named

  const guesses = await Promise.all(
    Array.from({ length: 50 }, (_, i) => limited.get('/v1/whoami', `skp_guess${i}`).then(({ status }) => status)),
  )

  assert.deepEqual([guesses.filter((status) => status === 401).length, lookups], [5, 5])
  assert.equal(guesses.filter((status) => status === 429).length, 45)
  assert.equal((await limited.get('/v1/whoami', known.key)).status, 200)
})

test('connections beyond the limit of an address get 429 and are closed', async () => {
  const limited = await createTestApp({ config: { connectionsPerAddress: 3 } })
  const { port } = await listenOn(limited.app)
  const open = await Promise.all(
    Array.from({ length: 3 }, async () => {
      const socket = net.connect(port, '127.0.0.1')
      await once(socket, 'connect')
      return socket
    }),
  )
  const get = async () => {
    const request = http.get({ port, host: '127.0.0.1', path: '/healthz', agent: false })
    const [response] = (await once(request, 'response')) as [http.IncomingMessage]
    return [response.statusCode, JSON.parse((await response.toArray()).join('')).data?.code]
  }

  assert.deepEqual(await get(), [429, 'rate_limited'])
  const closed = once(open[0]!, 'close')
  open[0]!.destroy()
  await closed
  await new Promise((resolve) => setImmediate(resolve))
  assert.deepEqual(await get(), [200, undefined])
  for (const socket of open) socket.destroy()
})

/** A raw connection, and everything that it receives until it is closed. */
function connect(text: string) {
  const socket = net.connect(port, '127.0.0.1')
  socket.on('error', () => {})
  socket.write(text)
  return { socket, received: socket.toArray().then((chunks) => chunks.join('')) }
}

test('a request head that does not arrive in time is 408, and an unused connection is closed', async () => {
  const { headersTimeout } = app.server
  app.server.headersTimeout = 100
  const slow = connect('POST /echo HTTP/1.1\r\nX-Slow: ')
  const unused = connect('')

  assert.match(await slow.received, /^HTTP\/1\.1 408 [\s\S]*"code":"request_timeout"/)
  assert.equal(await unused.received, '')
  app.server.headersTimeout = headersTimeout
})

test('a body that arrives slowly does not keep its connection: JSON is 408, a refused one is dropped', async () => {
  const json = connect(`POST /echo HTTP/1.1\r\nHost: x\r\nX-Api-Key: ${key}\r\nContent-Length: 100\r\n\r\n{`)
  const refused = connect('POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{')

  assert.match(await json.received, /^HTTP\/1\.1 408 [\s\S]*"code":"request_timeout"/)
  assert.match(await refused.received, /^HTTP\/1\.1 404 /)
})
