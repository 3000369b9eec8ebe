/** Rate limits of the ingress, and its metrics. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import http, { type IncomingMessage } from 'node:http'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { createTestIngress, hostnameOf, serve } from './testing.ts'

const { ingress, requestTo, newSandbox, sendRaw, metric } = await createTestIngress({
  ingressRateLimitPerMinute: 20,
  trustedProxies: ['127.0.0.1'],
})
const program = await serve((_request, response) => response.end('x'.repeat(10_000)))
const { id } = await newSandbox()
const name = hostnameOf(id, program.port)
/** The address of a client, as a trusted proxy reports it. Each test uses another one. */
const from = (address: string) => ({ headers: { 'x-forwarded-for': address } })
const outcome = (what: string) => metric(`warren_ingress_requests_total{outcome="${what}"}`)

test('an address is limited over all sandboxes, existing or not; other addresses are not affected', async () => {
  const statuses: number[] = []
  for (let i = 0; i < 25; i++) {
    const target = i % 2 === 0 ? name : hostnameOf('sb-01ARZ3NDEKTSV4RRFFQ69G5FAV', 80 + i)
    statuses.push((await requestTo(target, from('192.0.2.1'))).status)
  }
  const rejected = await requestTo(name, from('192.0.2.1'))
  const upgrade = await requestTo(name, {
    headers: { ...from('192.0.2.1').headers, connection: 'Upgrade', upgrade: 'x' },
  })

  assert.ok(statuses.filter((status) => status !== 429).length <= 21, `${statuses}`)
  assert.deepEqual([rejected.status, upgrade.status], [429, 429])
  assert.match(String(rejected.headers['retry-after']), /^[1-5]$/)
  assert.match(String(upgrade.headers['retry-after']), /^[1-5]$/)
  assert.equal((await requestTo(name, from('192.0.2.2'))).status, 200)
  // Entries to the left of an untrusted address were sent by that client and do not count.
  assert.equal((await requestTo(name, from('192.0.2.3, 192.0.2.1'))).status, 429)
  assert.equal((await requestTo(name, from('192.0.2.1, 192.0.2.3'))).status, 200)
})

test('the addresses of an IPv6 network of 64 bits are limited together', async () => {
  const statuses: number[] = []
  for (let i = 1; i <= 25; i++) statuses.push((await requestTo(name, from(`2001:db8:0:1::${i.toString(16)}`))).status)

  assert.ok(statuses.filter((status) => status !== 429).length <= 21, `${statuses}`)
  assert.equal((await requestTo(name, from('2001:db8:0:1:ffff::1'))).status, 429)
  assert.equal((await requestTo(name, from('2001:db8:0:2::1'))).status, 200)
  // The same IPv4 address in two notations.
  for (let i = 0; i < 25; i++) await requestTo(name, from('::ffff:192.0.2.20'))
  assert.equal((await requestTo(name, from('192.0.2.20'))).status, 429)
})

test('metrics count requests by outcome, their bytes and the response time of the sandbox', async () => {
  const client = from('192.0.2.10')
  const before = {
    answered: await outcome('answered'),
    out: await metric('warren_ingress_bytes_total{direction="out"}'),
  }
  const closed = await serve(() => {})
  closed.close()
  await once(closed, 'close')

  for (const secure of [false, true]) await requestTo(name, { ...client, secure })
  await requestTo(hostnameOf(id, closed.port), client)
  await requestTo('example.com', client)
  await sendRaw('nonsense\r\n\r\n')

  assert.equal(await outcome('answered'), before.answered + 2)
  assert.equal(await outcome('bad_gateway'), 1)
  assert.ok((await outcome('not_found')) >= 1)
  assert.equal(await outcome('bad_request'), 1)
  assert.ok((await outcome('rate_limited')) >= 3)
  const times = await Promise.all(
    ['new', 'kept'].map((connection) => metric(`warren_ingress_upstream_seconds_count{connection="${connection}"}`)),
  )
  assert.ok(times[0]! >= 1 && times[1]! >= 1, `${times}`)
  await until(async () => (await metric('warren_ingress_bytes_total{direction="out"}')) > before.out + 20_000)
  assert.ok((await metric('warren_ingress_bytes_total{direction="in"}')) > 200)
})

test('metrics count open connections, and bytes while they are transferred', async () => {
  const endless = await serve((_request, response) => {
    response.writeHead(200)
    response.write('y'.repeat(50_000))
  })
  await until(async () => (await metric('warren_ingress_connections{side="client"}')) === 0)
  const before = await metric('warren_ingress_bytes_total{direction="out"}')
  const headers = { host: hostnameOf(id, endless.port), ...from('192.0.2.11').headers }
  const request = http.get({ host: '127.0.0.1', port: ingress.port, headers, agent: false })
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  response.on('error', () => {}).resume()

  await until(async () => (await metric('warren_ingress_bytes_total{direction="out"}')) >= before + 50_000)
  assert.equal(await metric('warren_ingress_connections{side="client"}'), 1)
  assert.ok((await metric('warren_ingress_connections{side="sandbox"}')) >= 1)
  request.destroy()
  await until(async () => (await metric('warren_ingress_connections{side="client"}')) === 0)
})
