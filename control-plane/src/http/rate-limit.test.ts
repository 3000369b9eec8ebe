import assert from 'node:assert/strict'
import { test } from 'node:test'
import { RateLimiter } from '@warren/kit/rate-limit'
import { createTestApp } from '../testing/app.ts'

const MINUTE = 60_000
const take = (limiter: RateLimiter, times: number, nowMs: number, key = 'ada') =>
  Array.from({ length: times }, () => limiter.take(key, nowMs)).filter((wait) => wait === undefined).length

test('no more requests pass in a minute than the limit', () => {
  const limiter = new RateLimiter(10)

  assert.equal(take(limiter, 15, 5 * MINUTE), 10)
})

test('callers are counted separately', () => {
  const limiter = new RateLimiter(10)
  take(limiter, 10, MINUTE)

  assert.equal(take(limiter, 10, MINUTE, 'bob'), 10)
})

test('the window slides: half a minute into the next minute, half of the previous one still counts', () => {
  const limiter = new RateLimiter(10)
  take(limiter, 10, MINUTE)

  assert.equal(take(limiter, 10, 2.5 * MINUTE), 5)
})

test('after two minutes without requests the full limit is available', () => {
  const limiter = new RateLimiter(10)
  take(limiter, 10, MINUTE)

  assert.equal(take(limiter, 10, 4 * MINUTE), 10)
})

test('Retry-After is between 1 and 5 seconds, and waiting that long is enough if it is less than 5', () => {
  const limiter = new RateLimiter(600)
  take(limiter, 600, MINUTE)

  assert.equal(limiter.take('ada', MINUTE), 5)
  const wait = limiter.take('ada', 2 * MINUTE)
  assert.equal(wait, 1)
  assert.equal(limiter.take('ada', 2 * MINUTE + wait * 1000), undefined)
})

test('a limit of 0 is no limit', () => {
  assert.equal(take(new RateLimiter(0), 1000, MINUTE), 1000)
})

test('the API responds 429 with Retry-After, counts callers separately and exempts health probes', async () => {
  const { user, get, app } = await createTestApp({ config: { rateLimitPerMinute: 5 } })
  const [ada, bob] = [await user(), await user()]
  const statuses = []
  for (let i = 0; i < 7; i++) statuses.push((await get('/v1/whoami', ada.key)).status)

  const refused = await get('/v1/whoami', ada.key)

  assert.ok(statuses.filter((status) => status === 200).length <= 6, `${statuses}`)
  assert.equal(refused.status, 429)
  assert.deepEqual(refused.body, { status: 'fail', data: { message: 'too many requests', code: 'rate_limited' } })
  assert.match(String(refused.headers['retry-after']), /^[1-5]$/)
  assert.equal((await get('/v1/whoami', bob.key)).status, 200)
  for (let i = 0; i < 20; i++) assert.equal((await get('/healthz')).status, 200)
  const health = await app.inject({ url: '/readyz', headers: { 'x-api-key': ada.key } })
  assert.equal(health.statusCode, 200)
})

test('guessing keys is limited by address and does not affect keys that were valid before', async () => {
  const { user, get, deps } = await createTestApp({ config: { rateLimitPerMinute: 5 } })
  const [ada, bob] = [await user(), await user()]
  await get('/v1/whoami', ada.key)
  const statuses = []
  for (let i = 0; i < 12; i++) statuses.push((await get('/v1/whoami', `skp_guess${i}`)).status)

  deps.credentials.clear()
  assert.equal(statuses.at(-1), 429)
  assert.equal((await get('/v1/whoami', ada.key)).status, 200)
  assert.equal((await get('/v1/whoami', bob.key)).status, 429)
})

test('a credential that could not be checked is not counted as a guess', async () => {
  const { user, get, deps } = await createTestApp({ config: { rateLimitPerMinute: 5 } })
  const ada = await user()
  const { named } = deps.database
  deps.database.named = () => Promise.reject(Object.assign(new Error('refused'), { code: 'ECONNREFUSED' }))
  const statuses = new Set<number>()
  for (let i = 0; i < 12; i++) statuses.add((await get('/v1/whoami', ada.key)).status)
  deps.database.named = named

  assert.deepEqual([...statuses], [503])
  assert.equal((await get('/v1/whoami', ada.key)).status, 200)
})

test('a forwarded address counts only from a configured proxy', async () => {
  const trusting = await createTestApp({ config: { rateLimitPerMinute: 3, trustedProxies: ['127.0.0.1'] } })
  const wary = await createTestApp({ config: { rateLimitPerMinute: 3 } })
  const flood = async (app: typeof trusting.app) => {
    const statuses = []
    for (let i = 0; i < 10; i++) {
      const response = await app.inject({ url: '/v1/shapes', headers: { 'x-forwarded-for': `198.18.0.${i}` } })
      statuses.push(response.statusCode)
    }
    return statuses.includes(429)
  }

  assert.equal(await flood(trusting.app), false)
  assert.equal(await flood(wary.app), true)
})

test('requests without a valid credential are counted by address, those of an IPv6 network of 64 bits together', async () => {
  const { app } = await createTestApp({ config: { rateLimitPerMinute: 5, trustedProxies: ['127.0.0.1'] } })
  const status = async (address: string) =>
    (await app.inject({ url: '/v1/whoami', headers: { 'x-forwarded-for': address, 'x-api-key': 'wrong' } })).statusCode

  const statuses = []
  for (let i = 1; i <= 7; i++) statuses.push(await status(`2001:db8:0:1::${i}`))

  assert.deepEqual([...new Set(statuses)], [401, 429])
  assert.equal(await status('2001:db8:0:1:aaaa::1'), 429)
  assert.equal(await status('2001:db8:0:2::1'), 401)
})
