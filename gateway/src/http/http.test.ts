import assert from 'node:assert/strict'
import { once } from 'node:events'
import net, { type AddressInfo } from 'node:net'
import { test } from 'node:test'
import { checkConfig, readGatewayConfig } from '../config.ts'
import { createTestGateway, PAY_TO } from '../testing/app.ts'

const { app, request } = await createTestGateway({ config: { baseUrl: 'https://gateway.example' } })

test('health answers without a signature', async () => {
  assert.deepEqual((await request({ url: '/health' })).body, { status: 'ok' })
})

test('chains and recipients are public', async () => {
  assert.deepEqual((await request({ url: '/agent/chains' })).body, {
    chains: [
      { chain: 'arbitrum', chain_id: 42161, tokens: ['usdc', 'usdt'] },
      { chain: 'base', chain_id: 8453, tokens: ['usdc', 'usdt'] },
    ],
  })
  assert.deepEqual((await request({ url: '/agent/recipients' })).body, {
    updated_at: '2020-01-01T00:00:00.000Z',
    recipients: [
      { chain: 'arbitrum', address: PAY_TO },
      { chain: 'base', address: PAY_TO },
    ],
  })
})

test('every error is a flat body, and nothing below /agent may be cached', async () => {
  const cases: [url: string, status: number, error: string | RegExp][] = [
    ['/agent/nothing', 404, 'Not found'],
    ['/nothing', 404, 'Not found'],
    ['/agent/%zz', 404, 'Not found'],
    [`/agent/balance/${'a'.repeat(1000)}`, 404, 'Not found'],
    ['/agent/balance/0x12', 400, /^address: /],
    [`/agent/balance/${PAY_TO}?chain=solana`, 400, /^chain: /],
    [`/agent/balance/${PAY_TO}`, 502, 'Could not read balances on arbitrum'],
  ]
  for (const [url, status, error] of cases) {
    const answer = await request({ url })

    assert.equal(answer.status, status, url)
    assert.deepEqual(Object.keys(answer.body), ['error'], url)
    assert.match(answer.body.error, error instanceof RegExp ? error : new RegExp(`^${error}$`))
    assert.match(String(answer.headers['content-type']), /^application\/json/)
    if (url.startsWith('/agent')) assert.equal(answer.headers['cache-control'], 'no-store', url)
  }
})

test('answers below /agent are not cached when they succeed', async () => {
  assert.equal((await request({ url: '/agent/chains' })).headers['cache-control'], 'no-store')
})

test('bytes that are not HTTP get a flat error', async () => {
  await app.listen({ host: '127.0.0.1', port: 0 })
  const socket = net.connect((app.server.address() as AddressInfo).port, '127.0.0.1')
  let text = ''
  socket.on('data', (chunk) => {
    text += chunk
  })

  socket.write('nonsense\r\n\r\n')
  await once(socket, 'close')

  assert.match(text, /^HTTP\/1\.1 400 /)
  assert.deepEqual(JSON.parse(text.split('\r\n\r\n')[1]!), { error: 'this is not an HTTP request' })
})

test('the API description lists the routes under the configured URL, whatever host the request names', async () => {
  const { status, body } = await request({ url: '/openapi.json', headers: { host: 'evil.example' } })

  assert.equal(status, 200)
  assert.equal(body.openapi, '3.1.0')
  assert.deepEqual(body.servers, [{ url: 'https://gateway.example' }])
  assert.ok(body.paths['/agent/balance/{address}'].get)
  assert.doesNotMatch(JSON.stringify(body), /evil\.example/)
})

test('a configuration without chains or recipient names everything that is missing', () => {
  assert.throws(() => checkConfig(readGatewayConfig({})), /DATABASE_URL.*PAY_TO.*RPC_ARBITRUM.*RPC_BASE/s)
})

test('outside a loopback address the gateway wants an https URL', () => {
  const env = {
    DATABASE_URL: 'postgres://x',
    WARREN_GATEWAY_DATA_DIR: '/tmp/x',
    WARREN_GATEWAY_PAY_TO: PAY_TO,
    WARREN_GATEWAY_RPC_ARBITRUM: 'https://a.example/key,https://b.example',
    WARREN_GATEWAY_RPC_BASE: 'https://c.example',
    WARREN_GATEWAY_CONTROL_PLANE_URL: 'http://127.0.0.1:8080',
    WARREN_GATEWAY_API_KEY: 'skp_test',
  }
  checkConfig(readGatewayConfig(env))
  const open = { ...env, WARREN_GATEWAY_HOST: '0.0.0.0' }
  assert.throws(() => checkConfig(readGatewayConfig(open)), /https URL/)
  assert.throws(
    () => checkConfig(readGatewayConfig({ ...open, WARREN_GATEWAY_BASE_URL: 'http://x.example' })),
    /https URL/,
  )
  checkConfig(readGatewayConfig({ ...open, WARREN_GATEWAY_BASE_URL: 'https://x.example' }))
  const development = { ...open, WARREN_GATEWAY_BASE_URL: 'https://x.example', WARREN_GATEWAY_DEVELOPMENT: 'true' }
  assert.throws(() => checkConfig(readGatewayConfig(development)), /must be loopback addresses/)
  const apps = { ...env, WARREN_GATEWAY_APPS_HOST: '0.0.0.0', WARREN_GATEWAY_DEVELOPMENT: 'true' }
  assert.throws(() => checkConfig(readGatewayConfig(apps)), /must be loopback addresses/)
})

test('with a development chain only names of this machine are answered', async () => {
  const development = await createTestGateway({ config: { development: true } })
  const statusOf = async (host: string) =>
    (await development.request({ url: '/agent/chains', headers: { host } })).status

  for (const host of ['localhost:8090', '127.0.0.1:8090', '[::1]:8090']) assert.equal(await statusOf(host), 200, host)
  for (const host of ['evil.example:8090', 'localhost.evil.example', '127.0.0.1.evil.example']) {
    assert.equal(await statusOf(host), 400, host)
  }
})
