/** Apps at their host names: http, https, streams, WebSockets, redeploys under load, and what is not served. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import http from 'node:http'
import https from 'node:https'
import net from 'node:net'
import path from 'node:path'
import { after, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import {
  createDeploymentGateway,
  createWalletWithCredit,
  type Deployed,
  deployFiles,
  freePort,
  signedGet,
  waitForOutcome,
} from '../testing/deployments.ts'
import { parseAppHost } from './backend.ts'
import { startApps } from './start.ts'

const gateway = await createDeploymentGateway({ config: { appsPort: 0 } })
const apps = await startApps(gateway.deps)
after(() => apps.close())
const ca = await readFile(path.join(gateway.deps.config.dataDir, 'ca', 'ca.pem'))

type Answer = { status: number; headers: http.IncomingHttpHeaders; body: string }

function request(name: string, options: { url?: string; secure?: boolean; method?: string; body?: string } = {}) {
  const host = `${name}.apps.localhost`
  const { promise, resolve, reject } = Promise.withResolvers<Answer>()
  const common = {
    host: '127.0.0.1',
    port: apps.port,
    method: options.method ?? 'GET',
    path: options.url ?? '/',
    agent: false,
  } as const
  const headers = { host: `${host}:${apps.port}` }
  const sent = options.secure
    ? https.request({ ...common, headers, servername: host, ca })
    : http.request({ ...common, headers })
  sent.once('response', (response) => {
    response.toArray().then((chunks) => {
      const body = Buffer.concat(chunks).toString()
      resolve({ status: response.statusCode!, headers: response.headers, body })
    }, reject)
  })
  sent.once('error', reject)
  sent.end(options.body)
  return promise
}

/** Answers with its name and the host it sees; echoes after an upgrade; streams two parts at /stream. */
const APP = `const http = require('node:http')
const server = http.createServer((request, response) => {
  if (request.url === '/stream') {
    response.write('first;')
    setImmediate(() => response.end('second'))
  } else if (request.method === 'POST') request.pipe(response)
  else response.end(process.argv[2] + ' ' + request.headers.host + ' ' + request.headers['x-forwarded-proto'])
})
server.on('upgrade', (request, socket) => {
  socket.write('HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: echo\\r\\nConnection: Upgrade\\r\\n\\r\\n')
  socket.pipe(socket)
})
server.listen(process.env.PORT)
`

const wallet = await createWalletWithCredit(gateway)

async function deployApp(label: string, uniqueName?: string): Promise<Deployed> {
  const settings = { port: await freePort(), runCommand: `node app.js ${label}` }
  const deployed = await deployFiles(
    gateway,
    wallet,
    { 'app.js': APP },
    { settings, ...(uniqueName ? { uniqueName } : {}) },
  )
  assert.equal((await waitForOutcome(gateway, wallet, deployed)).status, 'ready')
  return deployed
}

const one = await deployApp('one', 'First-App')

test('an app answers at its host name, in any case, over http and https, and sees that host', async () => {
  const host = `first-app.apps.localhost:${apps.port}`

  assert.equal((await request('first-app')).body, `one ${host} http`)
  assert.equal((await request('first-app', { secure: true })).body, `one ${host} https`)
  assert.equal((await request('FIRST-APP')).status, 200)
  const { body } = await signedGet(gateway, wallet, '/agent/projects')
  assert.equal(body.projects[0].url, `https://${host}`)
})

test('bodies and responses are streamed', async () => {
  assert.equal((await request('first-app', { url: '/stream' })).body, 'first;second')
  assert.equal((await request('first-app', { method: 'POST', body: 'x'.repeat(500_000) })).body.length, 500_000)
})

test('an upgraded connection carries bytes in both directions', async () => {
  const socket = net.connect(apps.port, '127.0.0.1')
  socket.write(`GET /ws HTTP/1.1\r\nHost: first-app.apps.localhost\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n`)
  const [head] = (await once(socket, 'data')) as [Buffer]
  assert.match(head.toString(), /^HTTP\/1\.1 101 /)

  socket.write('hello')
  const [echo] = (await once(socket, 'data')) as [Buffer]

  assert.equal(echo.toString(), 'hello')
  socket.destroy()
})

test('a name without a project is 404, a project without a ready version 502', async () => {
  assert.equal((await request('nothing-here')).status, 404)
  const failed = await deployFiles(gateway, wallet, { 'x.txt': '' })
  await waitForOutcome(gateway, wallet, failed)

  assert.equal((await request(failed.uniqueName)).status, 502)
})

test('an unpaid app is 503, and a deleted one 404 at once', async () => {
  const app = await deployApp('unpaid')
  const set = (status: string, at: Date | null) =>
    gateway.deps.database.pool.query(`update gateway.projects set status = $2, paused_at = $3 where id = $1`, [
      app.projectId,
      status,
      at,
    ])
  await set('pending', null)
  assert.equal((await request(app.uniqueName)).status, 503)
  await set('active', null)

  await signedGet(gateway, wallet, `/agent/projects/${app.projectId}`, 'DELETE')
  assert.equal((await request(app.uniqueName)).status, 404)
})

test('redeploy under load loses none of 1,000 requests', async () => {
  let [sent, isDone] = [0, false]
  const answers: Answer[] = []
  const send = async () => {
    while (!isDone || sent < 1_000) {
      sent++
      answers.push(await request('first-app'))
    }
  }
  const load = Promise.all(Array.from({ length: 8 }, send))

  await deployApp('two', one.uniqueName)
  await until(() => answers.some(({ body }) => body.startsWith('two ')))
  isDone = true
  await load

  assert.ok(answers.length >= 1_000)
  assert.deepEqual([...new Set(answers.map(({ status }) => status))], [200])
  // Of the load itself, a request that the old version had received earlier can be answered last.
  assert.match((await request('first-app')).body, /^two /)
})

test('host names are one label below the domain', () => {
  const domain = 'apps.example.com'
  assert.deepEqual(parseAppHost('Shop.apps.example.com:443', domain), { name: 'shop' })
  assert.deepEqual(parseAppHost('shop.apps.example.com.', domain), { name: 'shop' })
  for (const wrong of [undefined, '', domain, 'a.b.apps.example.com', 'shop.example.com', '-x.apps.example.com']) {
    assert.equal(parseAppHost(wrong, domain), undefined)
  }
})
