import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test } from 'node:test'
import { sql } from 'kysely'
import type { App } from '../http/server.ts'
import { createTestGateway } from '../testing/app.ts'
import { createTestDatabase } from '../testing/database.ts'
import { createTestWallet } from '../testing/wallet.ts'
import { deleteExpiredNonces } from './nonces.ts'

/** A protected route without anything behind it. */
const routes = (app: App) => {
  app.post('/agent/probe', { config: { signature: 'required' } }, async (request) => ({ wallet: request.wallet }))
}
const database = await createTestDatabase()
const { app, deps, request } = await createTestGateway({ database, routes })
const probe = (headers: Record<string, string>) => request({ method: 'POST', url: '/agent/probe', headers })

const countNonces = async (wallet: string): Promise<number> => {
  const { rows } = await sql<{ count: number }>`select count(*)::int as count from gateway.nonces
    where wallet = ${wallet.toLowerCase()}`.execute(deps.db)
  return rows[0]!.count
}

test('a signed request passes, whatever the spelling of its wallet', async () => {
  const wallet = createTestWallet()

  for (const spelling of [wallet.address, wallet.address.toLowerCase(), `0x${wallet.address.slice(2).toUpperCase()}`]) {
    const { status, body } = await probe(await wallet.sign({ wallet: spelling }))

    assert.equal(status, 200)
    assert.equal(body.wallet, wallet.address.toLowerCase())
  }
})

test('the signature covers the raw header strings: another spelling than the signed one is refused', async () => {
  const wallet = createTestWallet()
  const lower = { ...(await wallet.sign()), 'x-wallet-address': wallet.address.toLowerCase() }
  const nonce = randomUUID()
  const upperNonce = { ...(await wallet.sign({ nonce })), 'x-nonce': nonce.toUpperCase() }

  assert.deepEqual(await probe(lower).then(({ status, body }) => [status, body.error]), [
    401,
    'Unauthorized: bad signature',
  ])
  assert.equal((await probe(upperNonce)).status, 401)
})

test('every missing or malformed header is 401 and names it', async () => {
  const wallet = createTestWallet()
  const cases: [header: string, value: string | undefined][] = [
    ['x-wallet-address', undefined],
    ['x-wallet-address', '0x12'],
    ['x-wallet-address', wallet.address.slice(2)],
    ['x-wallet-address', `0X${wallet.address.slice(2)}`],
    ['x-timestamp', undefined],
    ['x-timestamp', String(Math.floor(Date.now() / 1000))],
    ['x-timestamp', `${Date.now()}.5`],
    ['x-timestamp', `+${String(Date.now()).slice(1)}`],
    ['x-nonce', undefined],
    ['x-nonce', 'one'],
    ['x-nonce', `{${randomUUID()}}`],
    ['x-signature', undefined],
    ['x-signature', '0x'],
    ['x-signature', `0X${'1'.repeat(130)}`],
    ['x-signature', `0x${'1'.repeat(128)}`],
    ['x-signature', `0x${'1'.repeat(132)}`],
  ]
  for (const [header, value] of cases) {
    const { [header]: _, ...headers } = await wallet.sign()
    const { status, body } = await probe(value === undefined ? headers : { ...headers, [header]: value })

    assert.equal(status, 401, `${header} ${value}`)
    assert.deepEqual(Object.keys(body), ['error'])
    assert.match(
      body.error,
      value === undefined ? /^Unauthorized: missing header X-/ : /^Unauthorized: malformed header X-/,
    )
  }
  assert.equal(await countNonces(wallet.address), 0)
})

test('a timestamp up to 60 s away passes in both directions, one beyond does not and keeps its nonce', async () => {
  const nowMs = Date.now()
  const { request } = await createTestGateway({ database, routes, now: () => new Date(nowMs) })
  const send = (headers: Record<string, string>) => request({ method: 'POST', url: '/agent/probe', headers })
  const wallet = createTestWallet()

  for (const skewMs of [-60_000, 60_000]) {
    assert.equal((await send(await wallet.sign({ timestampMs: nowMs + skewMs }))).status, 200)
  }
  const before = await countNonces(wallet.address)
  for (const skewMs of [-60_001, 60_001]) {
    const { status, body } = await send(await wallet.sign({ timestampMs: nowMs + skewMs }))
    assert.deepEqual([status, body.error], [401, 'Unauthorized: expired timestamp'])
  }
  assert.equal(await countNonces(wallet.address), before)
})

test("another wallet's signature is refused and uses no nonce", async () => {
  const victim = createTestWallet()
  const thief = createTestWallet()

  const { status } = await probe(await thief.sign({ wallet: victim.address }))

  assert.equal(status, 401)
  assert.equal(await countNonces(victim.address), 0)
})

test('of 50 parallel requests with one nonce exactly one passes, in two processes together', async () => {
  const other = await createTestGateway({ database, routes })
  const headers = await createTestWallet().sign()

  const answers = await Promise.all(
    Array.from({ length: 50 }, (_, i) =>
      (i % 2 === 0 ? request : other.request)({ method: 'POST', url: '/agent/probe', headers }),
    ),
  )

  assert.equal(answers.filter(({ status }) => status === 200).length, 1)
  const refused = answers.filter(({ status }) => status === 401)
  assert.equal(refused.length, 49)
  for (const { body } of refused) assert.equal(body.error, 'Unauthorized: nonce reused')
})

test('a replayed signature is refused after a restart, and with the nonce signed anew in upper case', async () => {
  const wallet = createTestWallet()
  const nonce = randomUUID()
  const headers = await wallet.sign({ nonce })
  assert.equal((await probe(headers)).status, 200)

  const restarted = await createTestGateway({ database, routes })

  assert.equal((await restarted.request({ method: 'POST', url: '/agent/probe', headers })).status, 401)
  assert.equal((await probe(await wallet.sign({ nonce: nonce.toUpperCase() }))).status, 401)
})

test('two wallets may use the same nonce', async () => {
  const nonce = randomUUID()

  assert.equal((await probe(await createTestWallet().sign({ nonce }))).status, 200)
  assert.equal((await probe(await createTestWallet().sign({ nonce }))).status, 200)
})

test('a nonce is kept for as long as its message could be accepted, and then deleted', async () => {
  const wallet = createTestWallet()
  const timestampMs = Date.now() + 60_000
  assert.equal((await probe(await wallet.sign({ timestampMs }))).status, 200)

  await deleteExpiredNonces.run({ ...deps, now: () => new Date(timestampMs + 60_000) })
  assert.equal(await countNonces(wallet.address), 1)

  await deleteExpiredNonces.run({ ...deps, now: () => new Date(timestampMs + 3_600_000) })
  assert.equal(await countNonces(wallet.address), 0)
})

test('a header that is sent twice is refused', async () => {
  const headers = await createTestWallet().sign()
  const twice = { ...headers, 'x-nonce': [headers['x-nonce']!, randomUUID()] }

  const { statusCode } = await app.inject({ method: 'POST', url: '/agent/probe', headers: twice })

  assert.equal(statusCode, 401)
})

test('an address may send 30 requests a minute for each wallet it names, and 300 in all', async () => {
  let nowMs = Date.now()
  const limits = { rateLimitPerMinute: 30, addressRateLimitPerMinute: 300 }
  const { request } = await createTestGateway({ database, routes, config: limits, now: () => new Date(nowMs) })
  const send = (ip: string, headers: Record<string, string> = {}) => request({ url: '/agent/chains', ip, headers })

  for (let i = 0; i < 30; i++) assert.equal((await send('192.0.2.1')).status, 200)
  const refused = await send('192.0.2.1')
  assert.equal(refused.status, 429)
  assert.deepEqual(refused.body, { error: 'Rate limited' })
  assert.equal(refused.headers['retry-after'], '2')
  assert.equal(refused.headers['x-ratelimit-limit'], '30')
  assert.equal(refused.headers['x-ratelimit-remaining'], '0')
  assert.equal(refused.headers['x-ratelimit-reset'], '60')
  assert.equal(refused.headers['cache-control'], 'no-store')
  assert.equal((await send('192.0.2.2')).status, 200, 'another address is not affected')
  assert.equal((await request({ url: '/health', ip: '192.0.2.1' })).status, 200, 'health is not limited')
  assert.equal((await request({ url: '/agent/unknown', ip: '192.0.2.1' })).status, 429, 'unknown routes are')

  const encoded = await request({ url: '/%61gent/chains', ip: '192.0.2.1' })
  assert.equal(encoded.status, 429, 'another spelling of the path does not help')
  assert.equal(encoded.headers['cache-control'], 'no-store')

  nowMs += 2_000
  assert.equal((await send('192.0.2.1')).status, 200, 'one more after two seconds')
  assert.equal((await send('192.0.2.1')).status, 429, 'but not two')

  let passed = 0
  for (let i = 0; i < 310; i++) {
    const { status } = await send('192.0.2.3', { 'x-wallet-address': createTestWallet().address })
    if (status === 200) passed++
  }
  assert.equal(passed, 300, 'rotating wallets does not help')
})

test('strangers who name a wallet do not use up its rate; its owner does, from any address', async () => {
  const nowMs = Date.now()
  const limits = { rateLimitPerMinute: 30, addressRateLimitPerMinute: 300 }
  const { request } = await createTestGateway({ database, routes, config: limits, now: () => new Date(nowMs) })
  const victim = createTestWallet()
  const thief = createTestWallet()
  const send = (ip: string, headers: Record<string, string>) =>
    request({ method: 'POST', url: '/agent/probe', ip, headers })

  for (let i = 0; i < 40; i++) await send('192.0.2.9', await thief.sign({ wallet: victim.address }))
  const statuses: number[] = []
  for (let i = 0; i < 31; i++) statuses.push((await send(`198.51.100.${i}`, await victim.sign())).status)

  assert.deepEqual(statuses, [...Array(30).fill(200), 429])
})

test('a forwarded address counts only from a configured proxy', async () => {
  const limits = { rateLimitPerMinute: 1, addressRateLimitPerMinute: 300 }
  const open = await createTestGateway({ database, config: limits })
  const proxied = await createTestGateway({ database, config: { ...limits, trustedProxies: ['192.0.2.1'] } })
  const send = (gateway: typeof open, client: string) =>
    gateway.request({ url: '/agent/chains', ip: '192.0.2.1', headers: { 'x-forwarded-for': client } })

  assert.equal((await send(open, '198.51.100.1')).status, 200)
  assert.equal((await send(open, '198.51.100.2')).status, 429)
  assert.equal((await send(proxied, '198.51.100.1')).status, 200)
  assert.equal((await send(proxied, '198.51.100.2')).status, 200)
})
