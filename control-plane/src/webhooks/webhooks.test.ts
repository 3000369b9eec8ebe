/** The endpoints of the API for webhooks, and which events are emitted. Deliveries: delivery.test.ts. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { WEBHOOK_ACTIONS, WEBHOOK_DATA, type WebhookAction, type WebhookDeliveryView } from '@warren/protocol'
import { sql } from 'kysely'
import { Value } from 'typebox/value'
import { webhookSecretPlace } from '../secrets/places.ts'
import type { TestUser } from '../testing/app.ts'
import { insertSandbox } from '../testing/sandboxes.ts'
import { createHostedApp } from '../testing/with-host.ts'

const hosted = await createHostedApp({ host: { memMib: 1_000_000 } })
const { app, deps, host, user, create, send, get } = hosted
const ada = await user({ plan: 'enterprise' })
const eve = await user()
const URL_OK = 'https://hooks.invalid/warren?x=1'
const PATH = '/v1/webhook-endpoints'

const add = (who: TestUser, body: object = { url: URL_OK }, headers = {}) =>
  app.inject({ method: 'POST', url: PATH, headers: { ...who.headers, ...headers }, payload: body })
const addOk = async (who: TestUser, body?: object) => (await add(who, body)).json().data
const detail = async (who: TestUser, id: string) => (await get(`${PATH}/${id}`, who.key)).body.data

test('the actions are those of the contract', async () => {
  assert.deepEqual((await get(`${PATH}/actions`, ada.key)).body.data, [...WEBHOOK_ACTIONS])
})

test('creating an endpoint shows its secret once, and stores it encrypted', async () => {
  const created = await addOk(ada, { url: URL_OK, events: ['sandbox.create', 'sandbox.create'] })

  assert.match(created.secret, /^whsec_[\w-]{43}$/)
  const { secret, ...endpoint } = created
  assert.deepEqual(
    { ...endpoint, id: '', createdAt: '' },
    { id: '', userId: ada.id, url: URL_OK, events: ['sandbox.create'], active: true, failureCount: 0, createdAt: '' },
  )
  assert.deepEqual(await detail(ada, created.id), { endpoint, deliveries: [] })
  const [listed] = (await get(PATH, ada.key)).body.data
  assert.deepEqual(listed, endpoint)
  const row = await deps.db.selectFrom('webhook_endpoints').selectAll().where('id', '=', created.id).executeTakeFirst()
  assert.ok(row!.secret.startsWith('warren1.') && !row!.secret.includes(secret))
  assert.equal(await deps.secrets.open(webhookSecretPlace(created.id), row!.secret), secret)
})

test('events can be absent, null or empty for all actions', async () => {
  for (const body of [{ url: URL_OK }, { url: URL_OK, events: null }, { url: URL_OK, events: [] }]) {
    assert.deepEqual((await addOk(ada, body)).events, [])
  }
})

test('an invalid URL or action is 400 with the name of the field', async () => {
  const fields = async (body: object) => {
    const response = await add(ada, body)
    return [response.statusCode, ...Object.keys(response.json().data)]
  }

  assert.deepEqual(await fields({}), [400, 'url', 'code'])
  for (const url of [
    'hooks.example.com',
    'ftp://example.com/',
    'http://a:b@example.com/',
    `http://x/${'a'.repeat(3000)}`,
  ]) {
    assert.deepEqual(await fields({ url }), [400, 'url', 'code'], url)
  }
  for (const url of ['http://127.0.0.1/', 'http://[::1]/', 'http://169.254.169.254/', 'http://localhost:1/']) {
    assert.deepEqual(await fields({ url }), [400, 'url', 'code'], url)
  }
  assert.deepEqual(await fields({ url: URL_OK, events: ['sandbox.explode'] }), [400, 'events', 'code'])
  assert.deepEqual(await fields({ url: URL_OK, events: 'sandbox.create' }), [400, 'events', 'code'])
})

test('loopback is for the local user of a single machine only', async () => {
  const local = await user({ plan: 'local' })
  const url = 'http://127.0.0.1:9/'

  assert.equal((await add(local, { url })).statusCode, 400)
  deps.config.localUser = true
  assert.equal((await add(local, { url })).statusCode, 200)
  assert.equal((await add(ada, { url })).statusCode, 400)
  deps.config.localUser = false
})

test('endpoints beyond the plan are 429, also when they are created at the same time', async () => {
  const free = await user({ plan: 'free' })

  const responses = await Promise.all(Array.from({ length: 8 }, () => add(free)))

  assert.equal(responses.filter((one) => one.statusCode === 200).length, 2)
  const refused = responses.find((one) => one.statusCode !== 200)!
  assert.deepEqual(
    [refused.statusCode, refused.json().data],
    [429, { message: 'webhook endpoint cap reached: free allows 2 at once', code: 'cap_reached' }],
  )
  assert.equal(refused.headers['retry-after'], undefined)
  const plan = (await get('/v1/plan', free.key)).body.data
  assert.deepEqual(plan.webhook_endpoints, { concurrent: { limit: 2, used: 2 } })
  const [first] = (await get(PATH, free.key)).body.data
  await send('DELETE', `${PATH}/${first.id}`, free)
  assert.equal((await add(free)).statusCode, 200)
})

test('the same Idempotency-Key creates one endpoint and repeats its secret, which is stored encrypted', async () => {
  const bob = await user({ plan: 'free' })
  const key = { 'idempotency-key': 'create-1' }

  const first = await add(bob, { url: URL_OK }, key)
  const second = await add(bob, { url: URL_OK }, key)
  const other = await add(bob, { url: `${URL_OK}&y=2` }, key)

  assert.equal(second.payload, first.payload)
  assert.equal(second.headers['idempotent-replayed'], 'true')
  assert.equal(other.statusCode, 409)
  assert.equal((await get(PATH, bob.key)).body.data.length, 1)
  const stored = await sql<{ answer: string }>`select answer from idempotency_keys where key = 'create-1'`.execute(
    deps.db,
  )
  assert.ok(stored.rows[0]!.answer.startsWith('warren1.'))
})

test('suspend and resume answer the endpoint, and delete confirms', async () => {
  const { id } = await addOk(ada)
  await sql`update webhook_endpoints set failure_count = 7 where id = ${id}`.execute(deps.db)

  const suspended = await send('POST', `${PATH}/${id}/suspend`, ada)
  const again = await send('POST', `${PATH}/${id}/suspend`, ada)
  const resumed = await send('POST', `${PATH}/${id}/resume`, ada)
  const deleted = await send('DELETE', `${PATH}/${id}`, ada)

  assert.deepEqual([suspended.body.data.active, suspended.body.data.failureCount], [false, 7])
  assert.equal(again.status, 200)
  assert.deepEqual([resumed.body.data.active, resumed.body.data.failureCount], [true, 0])
  assert.ok(!('secret' in resumed.body.data))
  assert.deepEqual(deleted.body.data, { deleted: true })
  assert.equal((await send('DELETE', `${PATH}/${id}`, ada)).status, 404)
})

test("an endpoint that is absent, another user's or no UUID is 404 with the same body", async () => {
  const { id } = await addOk(ada)
  const absent = '01234567-89ab-4def-8123-456789abcdef'
  const expected = { status: 'fail', data: { message: 'webhook endpoint not found', code: 'not_found' } }

  for (const one of [id, absent, 'nonsense', "'; drop table users"]) {
    for (const [method, suffix] of [
      ['GET', ''],
      ['DELETE', ''],
      ['POST', '/suspend'],
      ['POST', '/resume'],
      ['POST', '/test'],
      ['POST', `/deliveries/${absent}/replay`],
    ] as const) {
      const { status, body } = await send(method, `${PATH}/${encodeURIComponent(one)}${suffix}`, eve)
      assert.deepEqual([status, body], [404, expected], `${method} ${one}${suffix}`)
    }
  }
  assert.deepEqual((await get(PATH, eve.key)).body.data, [])
})

test('a test event is added for one endpoint, whatever it subscribes to', async () => {
  const { id } = await addOk(ada, { url: URL_OK, events: ['disk.create'] })

  const { status, body } = await send('POST', `${PATH}/${id}/test`, ada)

  assert.equal(status, 200)
  assert.deepEqual([body.data.eventAction, body.data.status, body.data.attempts], ['webhook.test', 'pending', 0])
  assert.deepEqual(body.data.payload.data, { id, name: 'test' })
  assert.equal(body.data.deliveredAt, null)
  await send('POST', `${PATH}/${id}/suspend`, ada)
  assert.equal((await send('POST', `${PATH}/${id}/test`, ada)).body.data.code, 'wrong_state')
})

test('a completed delivery can be replayed as a new one with the same body; a pending one is 409', async () => {
  const { id } = await addOk(ada)
  const first = (await send('POST', `${PATH}/${id}/test`, ada)).body.data
  const replay = (delivery: string) => send('POST', `${PATH}/${id}/deliveries/${delivery}/replay`, ada)

  assert.equal((await replay(first.id)).body.data.code, 'wrong_state')
  await sql`update webhook_deliveries set status = 'failed', attempts = 6 where id = ${first.id}`.execute(deps.db)
  const second = (await replay(first.id)).body.data

  assert.notEqual(second.id, first.id)
  assert.deepEqual([second.payload, second.attempts, second.status], [first.payload, 0, 'pending'])
  for (const unknown of ['01234567-89ab-4def-8123-456789abcdef', 'x']) {
    assert.equal((await replay(unknown)).body.data.message, 'webhook delivery not found')
  }
  const foreign = await addOk(ada)
  const path = `${PATH}/${foreign.id}/deliveries/${first.id}/replay`
  assert.equal((await send('POST', path, ada)).status, 404)
})

// From here on: which events are emitted.

/** A user with one endpoint for everything; returns what was emitted so far, oldest first. */
async function subscriber(options: Parameters<typeof user>[0] = { plan: 'enterprise' }) {
  const who = await user(options)
  const { id } = await addOk(who)
  const deliveries = async (): Promise<WebhookDeliveryView[]> => (await detail(who, id)).deliveries.reverse()
  const actions = async () => (await deliveries()).map(({ eventAction }) => eventAction)
  const waitFor = async (action: string, count = 1): Promise<WebhookDeliveryView> => {
    let found: WebhookDeliveryView[] = []
    await until(async () => {
      found = (await deliveries()).filter(({ eventAction }) => eventAction === action)
      return found.length >= count
    }, `${count} × ${action}`)
    return found.at(-1)!
  }
  return { who, id, deliveries, actions, waitFor }
}

const statusOf = async (who: TestUser, id: string) => (await get(`/v1/sandboxes/${id}`, who.key)).body.data.status
const waitForStatus = (who: TestUser, id: string, status: string) =>
  until(async () => (await statusOf(who, id)) === status, `${id} is ${status}`)

test('every completed operation of a sandbox emits one event with its final status, and names its audit entry', async () => {
  const { who, deliveries, actions, waitFor } = await subscriber()
  const { id, name } = (await create(who, { envs: { TOKEN: 'env-value-1' } })).body.data
  const path = `/v1/sandboxes/${id}`
  await send('POST', `${path}/pause`, who)
  await waitForStatus(who, id, 'paused')
  const child = (await send('POST', `${path}/fork`, who, {})).body.data.id
  await waitForStatus(who, child, 'running')
  await send('POST', `${path}/resume`, who)
  await waitForStatus(who, id, 'running')
  await send('PATCH', path, who, { auto_pause_after_seconds: 600, ingress_enabled: true })
  await send('PATCH', path, who, { auto_pause_after_seconds: 600, ingress_enabled: true })
  await send('PATCH', path, who, { disable_auto_pause: true })
  await send('PUT', `${path}/egress`, who, { egress: ['example.com'] })
  const key = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJlbmNobWFya2tleW51bWJlcm9uZW9mdHdvYWFhYWFh a@b'
  await send('POST', `${path}/ssh-pubkeys`, who, { keys: [key] })
  await send('POST', `${path}/bandwidth/recharge`, who, { add_bytes: 1 })
  await send('DELETE', path, who)
  await waitFor('sandbox.destroy')

  assert.deepEqual(await actions(), [
    'sandbox.create',
    'sandbox.pause',
    'sandbox.fork',
    'sandbox.resume',
    'sandbox.patch',
    'sandbox.patch',
    'sandbox.egress.set',
    'sandbox.ssh_pubkey.update',
    'sandbox.bandwidth.update',
    'sandbox.destroy',
  ])
  const all = await deliveries()
  const data = Object.fromEntries(all.map(({ eventAction, payload }) => [eventAction, payload.data]))
  assert.deepEqual(data['sandbox.create'], {
    id,
    name,
    shape: 's-1vcpu-256mb',
    disk_mib: 10_240,
    region: 'eu',
    rootfs: 'debian:13',
  })
  assert.deepEqual(data['sandbox.pause'], { id, name, status: 'paused', status_reason: 'paused by the user' })
  assert.deepEqual(data['sandbox.resume'], { id, name, status: 'running' })
  assert.equal(data['sandbox.fork']!.forked_from, id)
  assert.deepEqual(all[4]!.payload.data, { id, name, auto_pause_after_seconds: 600, ingress_enabled: true })
  assert.deepEqual(data['sandbox.patch'], { id, name, disable_auto_pause: true })
  assert.deepEqual(data['sandbox.egress.set'], { id, name, egress: ['example.com'] })
  assert.deepEqual(data['sandbox.ssh_pubkey.update'], { id, name, count: 1 })
  assert.equal(data['sandbox.bandwidth.update']!.add_bytes, 1)
  assert.deepEqual(data['sandbox.destroy'], { id, name, status: 'destroyed' })
  for (const { eventAction, payload, auditLogId } of all) {
    assert.ok(Value.Check(WEBHOOK_DATA[eventAction as WebhookAction], payload.data), JSON.stringify(payload))
    const [entry] = (await get(`/v1/audit?action=${eventAction}`, who.key)).body.data.data
    assert.ok(auditLogId?.startsWith('aud_'), eventAction)
    if (eventAction !== 'sandbox.patch') assert.equal(entry.id, auditLogId, eventAction)
  }
  assert.ok(!JSON.stringify(all).includes('env-value-1'))
})

test('networks emit create, attach, detach and delete; a destroyed member emits detach', async () => {
  const { who, deliveries, actions, waitFor } = await subscriber()
  const network = (await send('POST', '/v1/networks', who, { name: 'backend' })).body.data
  const joined = (await create(who, { networks: [{ id: 'backend' }] })).body.data.id
  const late = (await create(who)).body.data.id
  await send('POST', `/v1/sandboxes/${late}/networks`, who, { id: 'backend' })
  await send('POST', `/v1/sandboxes/${late}/networks`, who, { id: 'backend' })
  await send('DELETE', `/v1/sandboxes/${late}/networks/backend`, who)
  await send('DELETE', `/v1/sandboxes/${joined}`, who)
  await waitFor('sandbox.destroy')
  await send('DELETE', '/v1/networks/backend', who)

  assert.deepEqual(await actions(), [
    'network.create',
    'sandbox.create',
    'network.attach',
    'sandbox.create',
    'network.attach',
    'network.detach',
    'network.detach',
    'sandbox.destroy',
    'network.delete',
  ])
  const all = await deliveries()
  const about = { id: network.id, name: 'backend', network_id: network.id }
  assert.deepEqual(all[2]!.payload.data, { ...about, sandbox_id: joined })
  assert.deepEqual(all[5]!.payload.data, { ...about, sandbox_id: late })
  assert.deepEqual(all[6]!.payload.data, { ...about, sandbox_id: joined })
  assert.equal(all[6]!.auditLogId, all[7]!.auditLogId)
  assert.deepEqual(all[8]!.payload.data, about)
})

test('a failed create emits nothing, not even for its networks', async () => {
  const { who, actions } = await subscriber()
  await send('POST', '/v1/networks', who, { name: 'backend' })
  host.hooks = {
    beforeCreate: () => {
      throw new Error('broken')
    },
  }

  assert.ok((await create(who, { networks: [{ id: 'backend' }] })).status >= 500)

  host.hooks = {}
  assert.deepEqual(await actions(), ['network.create'])
})

test('automatic causes emit the same events, with their reason and without an audit entry', async () => {
  const { who, waitFor, actions } = await subscriber()
  const { id } = (await create(who)).body.data

  host.vms.get(id)!.signal = { action: 'pause', reason: 'done for today' }
  const paused = await waitFor('sandbox.pause')
  await send('POST', `/v1/sandboxes/${id}/resume`, who)
  await waitFor('sandbox.resume')
  await send('PATCH', `/v1/sandboxes/${id}`, who, { auto_pause_after_seconds: 60 })
  await sql`update sandboxes set last_active_at = now() - interval '2 minutes' where id = ${id}`.execute(deps.db)
  const idle = await waitFor('sandbox.pause', 2)
  host.vms.delete(id)
  const lost = await waitFor('sandbox.destroy')

  assert.deepEqual([paused.payload.data.status_reason, paused.auditLogId], ['done for today', undefined])
  assert.match(String(idle.payload.data.status_reason), /^auto-pause: idle for 60 s/)
  assert.equal(idle.auditLogId, undefined)
  assert.deepEqual([lost.payload.data.status, lost.auditLogId], ['failed', undefined])
  assert.equal((await actions()).length, 6)
})

test('a VM that is lost, and a resume that fails, are reported with status error', async () => {
  const { who, waitFor } = await subscriber()
  const { id } = (await create(who)).body.data

  host.vms.get(id)!.state = 'dead'
  const lost = await waitFor('sandbox.pause')

  assert.equal(lost.payload.data.status, 'error')
  assert.match(String(lost.payload.data.status_reason), /^the VM ended/)
})

test('only active endpoints that want the action get a delivery, and none of another user', async () => {
  const who = await user({ plan: 'enterprise' })
  const all = await addOk(who)
  const wanting = await addOk(who, { url: URL_OK, events: ['network.create', 'network.delete'] })
  const other = await addOk(who, { url: URL_OK, events: ['sandbox.create'] })
  const suspended = await addOk(who)
  await send('POST', `${PATH}/${suspended.id}/suspend`, who)
  const foreign = await subscriber()

  await send('POST', '/v1/networks', who, { name: 'x' })

  const counts = await Promise.all(
    [all, wanting, other, suspended].map(async ({ id }) => (await detail(who, id)).deliveries.length),
  )
  assert.deepEqual(counts, [1, 1, 0, 0])
  assert.deepEqual(await foreign.actions(), [])
})

test('an event and its cause are committed together or not at all', async () => {
  const { who, actions } = await subscriber()
  const { id } = await insertSandbox(deps.db, who.id, 'creating')

  await assert.rejects(
    deps.db.transaction().execute(async (tx) => {
      const { endMove } = await import('../sandboxes/move.ts')
      await endMove(tx, id, 'createDone', 1)
      throw new Error('rolled back')
    }),
    /rolled back/,
  )

  assert.deepEqual(await actions(), [])
})

test('an endpoint that is deleted while an event is emitted does not fail the cause', async () => {
  const { who, id } = await subscriber()
  const results = await Promise.all([
    ...Array.from({ length: 10 }, (_, n) => send('POST', '/v1/networks', who, { name: `net-${n}` })),
    send('DELETE', `${PATH}/${id}`, who),
  ])

  assert.deepEqual([...new Set(results.map(({ status }) => status))], [200])
  const left = await sql`select from webhook_deliveries where endpoint_id = ${id}`.execute(deps.db)
  assert.equal(left.rows.length, 0)
})
