import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type RequestListener } from 'node:http'
import { type AddressInfo, createServer as createTcpServer } from 'node:net'
import { type TestContext, test } from 'node:test'
import { portChecks } from './ports.ts'

const signal = new AbortController().signal

async function checkBoth(env: NodeJS.ProcessEnv) {
  const [api, metrics] = await Promise.all(portChecks({ env }).map((check) => check.run(signal)))
  return { api: api!, metrics: metrics! } // There are two checks.
}

async function serve(t: TestContext, listener: RequestListener): Promise<string> {
  const server = createServer(listener).listen(0, '127.0.0.1')
  t.after(() => server.close())
  await once(server, 'listening')
  return String((server.address() as AddressInfo).port)
}

test('a free port passes and is still free afterwards', async (t) => {
  const port = await freePort()

  const { api } = await checkBoth({ WARREN_PORT: port, WARREN_METRICS_PORT: '0' })

  assert.deepEqual(api, { ok: true, detail: `127.0.0.1:${port} is free` })
  const server = createTcpServer().listen(Number(port), '127.0.0.1')
  t.after(() => server.close())
  await once(server, 'listening')
})

test('a port that a running Warren uses passes', async (t) => {
  const port = await serve(t, (request, response) => {
    response.statusCode = request.url === '/healthz' ? 200 : 404
    response.end('{"status":"success","data":{"up":true}}')
  })
  const metricsPort = await serve(t, (request, response) => {
    response.end(request.url === '/metrics' ? '# HELP warren_up 1 when up\nwarren_up 1\n' : 'not found')
  })

  const { api, metrics } = await checkBoth({ WARREN_PORT: port, WARREN_METRICS_PORT: metricsPort })

  assert.deepEqual(api, { ok: true, detail: `127.0.0.1:${port} is used by the Warren that runs here` })
  assert.equal(metrics.ok, true)
})

test('a port that another program uses fails, and the fix names the variable', async (t) => {
  const port = await serve(t, (_request, response) => response.end('{"status":"success","data":{"up":"yes"}}'))
  const metricsPort = await serve(t, (_request, response) => response.end('node_load1 0.5\n'))

  const { api, metrics } = await checkBoth({ WARREN_PORT: port, WARREN_METRICS_PORT: metricsPort })

  assert.deepEqual(api, {
    ok: false,
    detail: `127.0.0.1:${port} is used by another program`,
    fix: 'set WARREN_PORT to a free port',
  })
  assert.equal(metrics.ok ? '' : metrics.fix, 'set WARREN_METRICS_PORT to a free port')
})

test('a program that does not respond or does not speak HTTP is another program', async (t) => {
  const silent = createTcpServer().listen(0, '127.0.0.1')
  const rude = createTcpServer((socket) => socket.end('220 mail\r\n')).listen(0, '127.0.0.1')
  t.after(() => silent.close())
  t.after(() => rude.close())
  await Promise.all([once(silent, 'listening'), once(rude, 'listening')])
  const port = (server: typeof silent) => String((server.address() as AddressInfo).port)

  const { api, metrics } = await checkBoth({ WARREN_PORT: port(silent), WARREN_METRICS_PORT: port(rude) })

  assert.match(api.detail, /another program/)
  assert.match(metrics.detail, /another program/)
})

test('the same port twice, an invalid port and a foreign address fail the check', async () => {
  const both = await checkBoth({ WARREN_PORT: '9464' })
  const noPort = await checkBoth({ WARREN_PORT: 'http', WARREN_METRICS_PORT: '65536' })
  const noAddress = await checkBoth({ WARREN_HOST: '192.0.2.1', WARREN_PORT: '0', WARREN_METRICS_PORT: '0' })

  assert.equal(both.metrics.detail, "9464 is the API's port")
  assert.equal(noPort.api.detail, 'WARREN_PORT=http is not a port number')
  assert.equal(noPort.metrics.detail, 'WARREN_METRICS_PORT=65536 is not a port number')
  assert.equal(noAddress.api.ok ? '' : noAddress.api.fix, 'set WARREN_HOST to an address of this machine')
})

async function freePort(): Promise<string> {
  const server = createTcpServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  server.close()
  await once(server, 'close')
  return String(port)
}
