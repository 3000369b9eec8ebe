import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, test } from 'node:test'
import { Fault } from '@warren/kit/failure'
import { createLog } from '@warren/kit/log'
import { until } from '@warren/kit/testing/until'
import { buildApp } from '../app.ts'
import { createTestApp, createTestDeps } from '../testing/app.ts'
import { createTestDatabase } from '../testing/database.ts'
import { createUser } from '../users/create.ts'
import { createApiKey } from '../users/keys.ts'
import { startOperatorServer } from './server.ts'
import { startTracing } from './tracing.ts'

const { deps, user, get } = await createTestApp()

test('metrics are on a separate port and count requests by route, not by path', async () => {
  const { key } = await user()
  await get('/v1/whoami', key)
  await get('/v1/sandboxes/sb-nothing', key)
  const server = await startOperatorServer(deps, { host: '127.0.0.1', port: 0 })

  const text = await (await fetch(`${server.url}/metrics`)).text()
  const elsewhere = await fetch(`${server.url}/`)

  assert.match(text, /warren_http_request_seconds_count\{method="GET",route="\/v1\/whoami",status="200"\} 1/)
  assert.match(text, /warren_http_request_seconds_count\{method="GET",route="\/v1\/sandboxes\/:id",status="404"\} 1/)
  assert.match(text, /warren_database_connections\{state="open"\} \d/)
  assert.equal(elsewhere.status, 404)
  assert.equal((await get('/metrics')).status, 404)
  await server.close()
})

test('no secret reaches the log', async () => {
  const lines: string[] = []
  const log = createLog({
    name: 't',
    level: 'trace',
    format: 'json',
    destination: { write: (line) => lines.push(line) },
  })
  const quiet = createTestDeps(await createTestDatabase())
  const app = await buildApp({ ...quiet, log })
  after(() => app.close())
  app.post('/fails', { config: { access: 'public' } }, async () => {
    throw new Error('broken')
  })

  await app.inject({
    method: 'POST',
    url: '/fails?token=SECRET-query',
    headers: { 'x-api-key': 'SECRET-key', authorization: 'Bearer SECRET-bearer' },
    payload: { password: 'SECRET-body' },
  })
  log.warn({ headers: { 'x-api-key': 'SECRET-header' }, disk: { credentials: { secret_key: 'SECRET-disk' } } }, 'whole')

  assert.ok(lines.some((line) => line.includes('unexpected error')))
  assert.doesNotMatch(lines.join(''), /SECRET/)
})

test('a change is logged with its request id and route; a successful read is not', async () => {
  const lines: { request?: string; route?: string; status?: number }[] = []
  const destination = { write: (line: string) => lines.push(JSON.parse(line)) }
  const log = createLog({ name: 't', level: 'info', format: 'json', destination })
  const app = await buildApp({ ...createTestDeps(await createTestDatabase()), log })
  after(() => app.close())
  app.post('/things/:id', { config: { access: 'public' } }, async () => ({}))

  await app.inject('/v1/shapes')
  await app.inject({ method: 'POST', url: '/things/7', headers: { 'x-request-id': 'r-1' } })

  assert.deepEqual(
    lines.map(({ request, route, status }) => ({ request, route, status })),
    [{ request: 'r-1', route: '/things/:id', status: 200 }],
  )
})

test('an app that does not listen is no warning when the deployment gateway asks it, and one for others', async () => {
  const lines: { level: number; status?: number }[] = []
  const destination = { write: (line: string) => lines.push(JSON.parse(line)) }
  const log = createLog({ name: 't', level: 'info', format: 'json', destination })
  const own = createTestDeps(await createTestDatabase())
  const app = await buildApp({ ...own, log })
  after(() => app.close())
  app.post('/things/tunnel/:port', { config: { access: 'user' } }, async () => {
    throw new Fault('upstream_unavailable', 'connection refused')
  })
  const ask = async (plan: 'internal' | 'pro') => {
    const { id } = await createUser(own.db, { name: plan, plan })
    const { key } = await createApiKey(own.db, id, 'test')
    return app.inject({ method: 'POST', url: '/things/tunnel/3000', headers: { 'x-api-key': key } })
  }

  const answers = [await ask('internal'), await ask('pro')]

  assert.deepEqual(
    answers.map(({ statusCode }) => statusCode),
    [502, 502],
  )
  const levels = lines.filter(({ status }) => status === 502).map(({ level }) => level)
  assert.deepEqual(levels, [30, 40])
})

test('traces are sent to the configured endpoint, and nowhere without one', async () => {
  const received: string[] = []
  const collector = createServer((request, response) => {
    received.push(`${request.method} ${request.url}`)
    request.resume().on('end', () => response.writeHead(200, { 'content-type': 'application/json' }).end('{}'))
  })
  collector.listen(0, '127.0.0.1')
  await new Promise((resolve) => collector.once('listening', resolve))
  after(() => collector.close())
  const url = `http://127.0.0.1:${(collector.address() as AddressInfo).port}`
  const tracing = (await startTracing(url, createLog({ name: 't', level: 'fatal', format: 'json' })))!
  const app = await buildApp(createTestDeps(await createTestDatabase()), tracing)

  assert.equal((await app.inject('/healthz')).statusCode, 200)
  await app.close()
  await tracing.stop()

  await until(() => received.length > 0)
  assert.deepEqual(new Set(received), new Set(['POST /v1/traces']))
  assert.equal(await startTracing(undefined, createLog({ name: 't', level: 'fatal', format: 'json' })), undefined)
})
