import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, test } from 'node:test'
import { passTime } from '@warren/kit/testing/pass-time'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { WEBHOOK_RETRY_DELAYS_MS, type WebhookDeliveryView } from '@warren/protocol'
import { sql } from 'kysely'
import { writeHeartbeat } from '../jobs/processes.ts'
import { createTestApp, createTestDeps, reconnect, type TestUser } from '../testing/app.ts'
import { startTestReceiver, type TestReceiver } from '../testing/webhook-receiver.ts'
import { deleteOldDeliveries } from './delete-old.ts'
import { startDeliverer } from './deliverer.ts'

/** On a busy machine a receiver that responds takes longer too. */
const TIMEOUT_MS = scaleLimit(1_000)
const { app, deps, user, get } = await createTestApp({ config: { localUser: true } })
const PATH = '/v1/webhook-endpoints'
let clockMs = Date.now()
deps.now = () => new Date(clockMs)
await writeHeartbeat(deps, [])
const beating = setInterval(() => void writeHeartbeat(deps, []).catch(() => {}), 500)
after(() => clearInterval(beating))
const deliverer = startDeliverer(deps, { timeoutMs: TIMEOUT_MS })
after(() => deliverer.stop())

const post = async (who: TestUser, path: string, body: object = {}) =>
  (await app.inject({ method: 'POST', url: path, headers: who.headers, payload: body })).json().data

/** A user on this machine with an endpoint at a receiver. */
async function subscriber(receiver: Pick<TestReceiver, 'url'> & { secret?: string | undefined }, who?: TestUser) {
  const owner = who ?? (await user({ plan: 'local' }))
  const { id, secret } = await post(owner, PATH, { url: receiver.url })
  receiver.secret = secret
  const read = async () => (await get(`${PATH}/${id}`, owner.key)).body.data
  const deliveries = async (): Promise<WebhookDeliveryView[]> => (await read()).deliveries
  const first = async () => (await deliveries())[0]!
  return { who: owner, id, secret, read, deliveries, first }
}

/** Emits events as a verb would, without one. */
async function emit(who: TestUser, subjects: string[], from = 0): Promise<void> {
  await sql`select emit_webhook_event(${who.id}, 'sandbox.patch', s.subject, null,
      json_build_object('id', s.subject, 'name', 'x', 'n', s.n + ${from}::int))
    from unnest(${subjects}::text[]) with ordinality s (subject, n) order by s.n`.execute(deps.db)
}

test('a delivery is a signed POST with the event as its body', async () => {
  const receiver = await startTestReceiver()
  const { who, first, id } = await subscriber(receiver)

  await post(who, '/v1/networks', { name: 'backend' })
  await until(() => receiver.received.length === 1)

  const { event, headers, timestamp, delivery } = receiver.received[0]!
  assert.deepEqual([headers.method, headers['content-type']], ['POST', 'application/json'])
  assert.match(String(headers['user-agent']), /^Warren-Webhooks\//)
  assert.match(String(headers['x-webhook-signature']), /^sha256=[0-9a-f]{64}$/)
  assert.equal(headers['x-webhook-event'], 'network.create')
  assert.equal(timestamp, Math.floor(clockMs / 1000))
  assert.deepEqual(Object.keys(event), ['event', 'occurredAt', 'data'])
  assert.match(event.occurredAt, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/)
  await until(async () => (await first()).status === 'delivered')
  const stored = await first()
  assert.deepEqual(
    [stored.id, stored.endpointId, stored.attempts, stored.payload, stored.lastError],
    [delivery, id, 1, event, undefined],
  )
  assert.equal(stored.deliveredAt, new Date(clockMs).toISOString())
})

test('a failed attempt is retried five times, after exactly the specified delays, with a new timestamp', async () => {
  const receiver = await startTestReceiver()
  receiver.respond = (response) => response.writeHead(503).end()
  const { who, first, read } = await subscriber(receiver)
  const startMs = clockMs
  await emit(who, ['sb-retry'])

  for (const [index, delayMs] of WEBHOOK_RETRY_DELAYS_MS.entries()) {
    await until(async () => (await first()).attempts === index + 1)
    const { status, nextAttemptAt, lastError } = await first()
    assert.deepEqual([status, lastError], ['pending', 'HTTP 503'])
    assert.equal(Date.parse(nextAttemptAt!) - clockMs, delayMs)
    assert.equal((await read()).endpoint.failureCount, 0)
    clockMs += delayMs - 1
    await deps.db.selectFrom('users').select('id').execute()
    assert.equal(receiver.received.length, index + 1)
    clockMs += 1
  }
  await until(async () => (await first()).status === 'failed')

  const delivery = await first()
  assert.deepEqual([delivery.attempts, delivery.deliveredAt, delivery.nextAttemptAt], [6, null, undefined])
  assert.equal((await read()).endpoint.failureCount, 1)
  assert.equal(receiver.received.length, 6)
  assert.equal(receiver.received[5]!.timestamp, Math.floor((startMs + 4_355_000) / 1000))
  assert.equal(new Set(receiver.received.map((one) => one.delivery)).size, 1)
})

test('a success after a failure ends the delivery and does not count as a failure', async () => {
  const receiver = await startTestReceiver()
  receiver.respond = (response) => response.writeHead(receiver.received.length === 1 ? 500 : 204).end()
  const { who, first, read } = await subscriber(receiver)
  await emit(who, ['sb-1'])
  await until(async () => (await first()).attempts === 1)

  clockMs += 5_000
  await until(async () => (await first()).status === 'delivered')

  assert.deepEqual([(await first()).attempts, (await first()).lastError], [2, 'HTTP 500'])
  assert.equal((await read()).endpoint.failureCount, 0)
})

test('no response in time, a closed connection, a refused one and a redirect are failures', async () => {
  const silent = await startTestReceiver()
  silent.respond = () => {}
  const closing = await startTestReceiver()
  closing.respond = (response) => response.destroy()
  const redirecting = await startTestReceiver()
  redirecting.respond = (response) => response.writeHead(302, { location: 'https://example.com/' }).end()
  const absent = await startTestReceiver()
  absent.close()

  const errors = await Promise.all(
    [silent, closing, redirecting, absent].map(async (receiver) => {
      const { who, first } = await subscriber(receiver)
      await emit(who, ['sb-1'])
      await until(async () => (await first()).attempts === 1)
      return (await first()).lastError
    }),
  )

  assert.deepEqual(errors, [
    `no response within ${TIMEOUT_MS / 1000} s`,
    'the receiver closed the connection',
    'HTTP 302: redirects are not followed',
    'connection refused',
  ])
})

test('a kept connection that the receiver has closed is not a failed attempt', async () => {
  const receiver = await startTestReceiver()
  const used = new WeakSet<object>()
  receiver.respond = (response) => {
    const { socket } = response
    if (used.has(socket!)) return void socket!.destroy()
    used.add(socket!)
    response.end()
  }
  const { who, deliveries } = await subscriber(receiver)

  await emit(who, ['sb-1', 'sb-1', 'sb-1'])
  await until(async () => (await deliveries()).filter(({ status }) => status === 'delivered').length === 3)

  assert.deepEqual(
    (await deliveries()).map(({ attempts, lastError }) => [attempts, lastError]),
    [1, 1, 1].map((attempts) => [attempts, undefined]),
  )
})

test('an endpoint is suspended at 50 failed deliveries, and resume starts it again', async () => {
  const receiver = await startTestReceiver()
  receiver.respond = (response) => response.writeHead(500).end()
  const { who, id, read } = await subscriber(receiver)
  await sql`update webhook_endpoints set active = false where id = ${id}`.execute(deps.db)
  await sql`insert into webhook_deliveries (endpoint_id, event_action, subject, payload, attempts, next_attempt_at)
    select ${id}, 'sandbox.patch', 'sb-' || n, '{"event":"sandbox.patch","occurredAt":"2026-01-01T00:00:00.000Z","data":{}}',
      5, to_timestamp(0) from generate_series(1, 49) n`.execute(deps.db)
  await post(who, `${PATH}/${id}/resume`)

  await until(async () => (await read()).endpoint.failureCount === 49, undefined, 60_000)
  assert.equal((await read()).endpoint.active, true)
  await sql`insert into webhook_deliveries (endpoint_id, event_action, subject, payload, attempts, next_attempt_at)
    values (${id}, 'sandbox.patch', 'sb-50', '{"event":"sandbox.patch","occurredAt":"2026-01-01T00:00:00.000Z","data":{}}',
      5, to_timestamp(0))`.execute(deps.db)
  await until(async () => !(await read()).endpoint.active)

  assert.equal((await read()).endpoint.failureCount, 50)
  await emit(who, ['sb-missed'])
  assert.ok(!(await read()).deliveries.some((one: WebhookDeliveryView) => one.payload.data.id === 'sb-missed'))
  receiver.respond = (response) => response.end()
  const resumed = await post(who, `${PATH}/${id}/resume`)
  assert.deepEqual([resumed.active, resumed.failureCount], [true, 0])
  await emit(who, ['sb-after'])
  await until(() => receiver.received.some(({ event }) => event.data.id === 'sb-after'))
})

test('a suspended endpoint receives nothing, and what was pending after it is resumed', async () => {
  const receiver = await startTestReceiver()
  receiver.respond = (response) => response.writeHead(500).end()
  const { who, id, first } = await subscriber(receiver)
  await emit(who, ['sb-1'])
  await until(async () => (await first()).attempts === 1)
  await post(who, `${PATH}/${id}/suspend`)
  receiver.respond = (response) => response.end()

  clockMs += 6_000
  const other = await startTestReceiver()
  const probe = await subscriber(other)
  // Another endpoint is served meanwhile, so the deliverer has looked at both.
  await emit(probe.who, ['sb-1'])
  await until(() => other.received.length === 1)
  assert.equal(receiver.received.length, 1)

  await post(who, `${PATH}/${id}/resume`)
  await until(async () => (await first()).status === 'delivered')
})

test('events of one sandbox arrive in order, and a failing one does not hold up the next', async () => {
  const receiver = await startTestReceiver()
  const subjects = ['sb-a', 'sb-b', 'sb-c', 'sb-d']
  receiver.respond = (response, { event }) => {
    const fails = event.data.id === 'sb-d' && event.data.n === 4
    void passTime(Math.random() * 20, 'receivers are not equally fast').then(() =>
      response.writeHead(fails ? 500 : 200).end(),
    )
  }
  const { who, deliveries } = await subscriber(receiver)

  await emit(
    who,
    Array.from({ length: 120 }, (_, n) => subjects[n % 4]!),
  )
  await until(async () => (await deliveries()).filter(({ status }) => status === 'delivered').length === 119)

  for (const subject of subjects) {
    const numbers = receiver.received.filter(({ event }) => event.data.id === subject).map(({ event }) => event.data.n)
    assert.deepEqual(
      numbers,
      [...numbers].sort((a, b) => Number(a) - Number(b)),
    )
    assert.equal(numbers.length, 30)
  }
})

test('one receiver gets a bounded number of requests at a time', async () => {
  const receiver = await startTestReceiver()
  let open = 0
  let most = 0
  receiver.respond = (response) => {
    most = Math.max(most, ++open)
    void passTime(20, 'requests overlap').then(() => {
      open--
      response.end()
    })
  }
  const { who } = await subscriber(receiver)

  await emit(
    who,
    Array.from({ length: 200 }, (_, n) => `sb-${n}`),
  )
  await until(() => receiver.received.length === 200)

  assert.ok(most > 1 && most <= 8, `${most} requests at once`)
})

test('receivers that never respond do not delay another one', async () => {
  const silent = await startTestReceiver()
  silent.respond = () => {}
  const healthy = await startTestReceiver()
  for (let i = 0; i < 40; i++) {
    const { who } = await subscriber({ url: silent.url })
    await emit(
      who,
      Array.from({ length: 50 }, (_, n) => `sb-${n}`),
    )
  }
  await until(() => silent.received.length >= 40)
  const { who, deliveries } = await subscriber(healthy)
  const startedAt = performance.now()

  await emit(
    who,
    Array.from({ length: 50 }, (_, n) => `sb-${n}`),
  )
  await until(() => healthy.received.length === 50)

  // 40 × 50 attempts of a second each would take minutes if they were in the way.
  assert.ok(performance.now() - startedAt < scaleLimit(3_000), `${performance.now() - startedAt} ms`)
  await until(async () => (await deliveries()).every(({ status }) => status === 'delivered'))
  await sql`delete from webhook_endpoints where url = ${silent.url}`.execute(deps.db)
})

test('a deleted endpoint receives nothing more, and its deliveries are gone at once', async () => {
  const receiver = await startTestReceiver()
  receiver.respond = (response) => response.writeHead(500).end()
  const { who, id } = await subscriber(receiver)
  await emit(who, ['sb-1'])
  await until(() => receiver.received.length === 1)

  await app.inject({ method: 'DELETE', url: `${PATH}/${id}`, headers: who.headers })
  const left = await sql`select from webhook_deliveries where endpoint_id = ${id}`.execute(deps.db)

  assert.equal(left.rows.length, 0)
})

test('a test event and a replay are delivered', async () => {
  const receiver = await startTestReceiver()
  const { who, id, first } = await subscriber(receiver)

  const { id: delivery } = await post(who, `${PATH}/${id}/test`)
  await until(async () => (await first()).status === 'delivered')
  await post(who, `${PATH}/${id}/deliveries/${delivery}/replay`)
  await until(() => receiver.received.length === 2)

  assert.deepEqual(receiver.actions(), ['webhook.test', 'webhook.test'])
  assert.deepEqual(receiver.received[1]!.event, receiver.received[0]!.event)
})

test('another process takes over the endpoints of one that died', async () => {
  const receiver = await startTestReceiver()
  const { who, id } = await subscriber(receiver)
  // A process that was alive a moment ago, and a retry that is due.
  const dead = randomUUID()
  await sql`insert into service_processes (id, seen_at) values (${dead}, now() - interval '3 seconds')`.execute(deps.db)
  await sql`update webhook_endpoints set owner = ${dead} where id = ${id}`.execute(deps.db)
  await emit(who, ['sb-1'])

  await until(() => receiver.received.length === 1, 'the delivery', 20_000)
})

test('two processes deliver every event, and each endpoint is served by one of them at a time', async () => {
  const second = createTestDeps(reconnect(deps.database), { localUser: true })
  await writeHeartbeat(second, [])
  // Without heartbeats it would count as dead on a busy machine, and its endpoints would be taken over.
  const beats = setInterval(() => void writeHeartbeat(second, []).catch(() => {}), 500)
  after(() => clearInterval(beats))
  const helper = startDeliverer(second)
  const receivers = await Promise.all(Array.from({ length: 6 }, () => startTestReceiver()))
  const owner = await user({ plan: 'local' })
  for (const receiver of receivers) await subscriber(receiver, owner)
  for (const receiver of receivers) receiver.secret = undefined // Each would need its own.

  for (let round = 0; round < 10; round++) {
    await emit(
      owner,
      Array.from({ length: 10 }, () => 'sb-one'),
      round * 10,
    )
  }
  await until(() => receivers.every(({ received }) => received.length >= 100))
  await helper.stop()

  for (const { received } of receivers) {
    assert.deepEqual(
      received.map(({ event }) => event.data.n),
      Array.from({ length: 100 }, (_, n) => n + 1),
    )
  }
})

test('a stop while the database is unreachable ends cleanly, also with a request open', async () => {
  const other = createTestDeps(reconnect(deps.database), { localUser: true })
  await writeHeartbeat(other, [])
  const owner = await user({ plan: 'local' })
  const receiver = await startTestReceiver()
  const slow = new Set<{ end(): void }>()
  receiver.respond = (response, { event }) => (event.data.id === 'sb-slow' ? slow.add(response) : response.end())
  const { id } = await post(owner, PATH, { url: receiver.url })
  await sql`update webhook_endpoints set owner = ${other.processId} where id = ${id}`.execute(deps.db)
  await emit(owner, ['sb-1', 'sb-2', 'sb-slow', 'sb-4'])
  const { named } = other.database
  other.database.named = async (name, ...rest) => {
    if (slow.size > 0) throw new Error('Connection terminated')
    return named(name, ...rest)
  }

  const stopping = startDeliverer(other)
  await until(() => receiver.received.length === 4)
  await stopping.stop()

  await sql`delete from webhook_endpoints where id = ${id}`.execute(deps.db)
})

test('completed deliveries are removed after 30 minutes, all after 72 hours', async () => {
  const who = await user({ plan: 'local' })
  const { id } = await post(who, PATH, { url: 'http://127.0.0.1:9/' })
  await post(who, `${PATH}/${id}/suspend`)
  const insert = (subject: string, status: string, ageMinutes: number) => {
    const at = new Date(clockMs - ageMinutes * 60_000)
    return sql`insert into webhook_deliveries (endpoint_id, event_action, subject, payload, status, created_at, completed_at)
      values (${id}, 'sandbox.patch', ${subject}, '{}', ${status}, ${at}, ${status === 'pending' ? null : at})`.execute(
      deps.db,
    )
  }
  await insert('delivered-29', 'delivered', 29)
  await insert('delivered-31', 'delivered', 31)
  await insert('failed-29', 'failed', 29)
  await insert('failed-31', 'failed', 31)
  await insert('pending-71h', 'pending', 71 * 60)
  await insert('pending-73h', 'pending', 73 * 60)

  await deleteOldDeliveries.run(deps)

  const { rows } = await sql<{ subject: string }>`select subject from webhook_deliveries where endpoint_id = ${id}
    order by subject`.execute(deps.db)
  assert.deepEqual(
    rows.map(({ subject }) => subject),
    ['delivered-29', 'failed-29', 'pending-71h'],
  )
})
