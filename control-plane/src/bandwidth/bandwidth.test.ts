import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { sql } from 'kysely'
import { reconcileNetworks } from '../networks/reconcile.ts'
import { setBalance } from '../testing/set-balance.ts'
import { createHostedApp } from '../testing/with-host.ts'

const GIB = 1024 ** 3
const { app, deps, host, user, create, send, get } = await createHostedApp({ host: { memMib: 10_000_000 } })
const owner = await user({ plan: 'pro' })

const networkOf = (id: string) => host.vms.get(id)!.network
const bandwidthOf = async (id: string) => (await get(`/v1/sandboxes/${id}/bandwidth`, owner.key)).body.data
const waitForStatus = (id: string, status: string) =>
  until(async () => (await get(`/v1/sandboxes/${id}`, owner.key)).body.data.status === status)
const recharge = (id: string, addBytes: unknown, who = owner) =>
  send('POST', `/v1/sandboxes/${id}/bandwidth/recharge`, who, { add_bytes: addBytes })
const creditOf = async (id: string) =>
  (await deps.db.selectFrom('users').select('credit_micro').where('id', '=', id).executeTakeFirstOrThrow()).credit_micro

test('a sandbox starts with the configured quota, unused', async () => {
  const { id, bandwidth_quota_bytes } = (await create(owner)).body.data

  assert.equal(bandwidth_quota_bytes, 5 * GIB)
  assert.deepEqual(await bandwidthOf(id), {
    id,
    quota_bytes: 5 * GIB,
    used_bytes: 0,
    ingress_bytes: 0,
    remaining_bytes: 5 * GIB,
    capped: false,
  })
})

test('traffic is visible at once in the bandwidth, and soon in the sandbox view', async () => {
  const { id } = (await create(owner)).body.data
  networkOf(id).send(1000)
  networkOf(id).receive(300)

  const { used_bytes, ingress_bytes, remaining_bytes } = await bandwidthOf(id)

  assert.deepEqual([used_bytes, ingress_bytes, remaining_bytes], [1000, 300, 5 * GIB - 1000])
  networkOf(id).receive(1)
  await until(async () => (await get(`/v1/sandboxes/${id}`, owner.key)).body.data.bandwidth_ingress_bytes === 301)
})

test('counters continue across pause and resume, to the byte', async () => {
  const { id } = (await create(owner)).body.data
  networkOf(id).send(1000)
  await send('POST', `/v1/sandboxes/${id}/pause`, owner)
  await waitForStatus(id, 'paused')
  assert.equal((await bandwidthOf(id)).used_bytes, 1000)

  await send('POST', `/v1/sandboxes/${id}/resume`, owner)
  await waitForStatus(id, 'running')
  networkOf(id).send(11)

  assert.equal((await bandwidthOf(id)).used_bytes, 1011)
})

test('an unreachable host, or one that reports an older count, does not reduce the totals', async () => {
  const { id } = (await create(owner)).body.data
  networkOf(id).send(1000)
  await bandwidthOf(id)

  networkOf(id).usedBytes = 400
  await reconcileNetworks.run(deps)
  assert.equal((await bandwidthOf(id)).used_bytes, 1000)
  await host.stop()
  const whileUnreachable = await bandwidthOf(id)
  await host.start()

  assert.equal(whileUnreachable.used_bytes, 1000)
})

test('a fork has its own quota', async () => {
  const { id } = (await create(owner)).body.data
  networkOf(id).send(1000)
  assert.equal((await recharge(id, GIB)).status, 200)
  await send('POST', `/v1/sandboxes/${id}/pause`, owner)
  await waitForStatus(id, 'paused')

  const child = (await send('POST', `/v1/sandboxes/${id}/fork`, owner)).body.data
  await waitForStatus(child.id, 'running')

  const { quota_bytes, used_bytes } = await bandwidthOf(child.id)
  assert.deepEqual([quota_bytes, used_bytes], [5 * GIB, 0])
})

test('a recharge adds quota, costs one credit per started GiB, and uncaps the sandbox', async () => {
  const { id } = (await create(owner)).body.data
  networkOf(id).send(5 * GIB + 1)
  assert.deepEqual(await bandwidthOf(id), {
    id,
    quota_bytes: 5 * GIB,
    used_bytes: 5 * GIB,
    ingress_bytes: 0,
    remaining_bytes: 0,
    capped: true,
  })
  const before = await creditOf(owner.id)

  const { status, body } = await recharge(id, GIB + 1)

  assert.equal(status, 200)
  assert.deepEqual(body.data, {
    id,
    quota_bytes: 6 * GIB + 1,
    used_bytes: 5 * GIB,
    ingress_bytes: 0,
    remaining_bytes: GIB + 1,
    capped: false,
  })
  assert.equal(networkOf(id).network.bandwidth.quota_bytes, 6 * GIB + 1)
  assert.equal(before - (await creditOf(owner.id)), 2_000_000)
  assert.equal((await get(`/v1/sandboxes/${id}`, owner.key)).body.data.bandwidth_quota_bytes, 6 * GIB + 1)
})

test('a recharge with an Idempotency-Key is charged once', async () => {
  const { id } = (await create(owner)).body.data
  const before = await creditOf(owner.id)
  const once = () =>
    app.inject({
      method: 'POST',
      url: `/v1/sandboxes/${id}/bandwidth/recharge`,
      headers: { ...owner.headers, 'idempotency-key': `recharge-${id}` },
      payload: { add_bytes: GIB },
    })

  const responses = await Promise.all([once(), once(), once()])

  assert.deepEqual([...new Set(responses.map((response) => response.statusCode))], [200])
  assert.equal((await bandwidthOf(id)).quota_bytes, 6 * GIB)
  assert.equal(before - (await creditOf(owner.id)), 1_000_000)
})

test('a recharge needs an integer of at most 100 GiB, a running sandbox and enough credit', async () => {
  const { id } = (await create(owner)).body.data
  for (const bytes of [0, -1, 1.5, 'many', undefined, 100 * GIB + 1]) {
    const { status, body } = await recharge(id, bytes)
    assert.equal(status, 400, String(bytes))
    assert.ok(body.data.add_bytes, String(bytes))
  }
  const poor = await user({ plan: 'pro' })
  const theirs = (await create(poor)).body.data
  await setBalance(deps.db, poor.id, 1_500_000)
  const unpaid = await recharge(theirs.id, 2 * GIB, poor)
  assert.deepEqual([unpaid.status, unpaid.body.data.code], [402, 'insufficient_credit'])
  assert.equal(await creditOf(poor.id), 1_500_000)

  await send('POST', `/v1/sandboxes/${id}/pause`, owner)
  await waitForStatus(id, 'paused')
  const paused = await recharge(id, GIB)
  assert.deepEqual([paused.status, paused.body.data.message], [409, 'sandbox is paused, expected running'])
})

test('without the database a recharge is 503, and neither the charge nor the quota has changed', async () => {
  const { id } = (await create(owner)).body.data
  const before = await creditOf(owner.id)
  const lock = await deps.database.pool.connect()
  await lock.query('begin')
  await lock.query('select from users where id = $1 for update', [owner.id])

  const asked = recharge(id, GIB)
  const terminateWaiting = async () => {
    const { rows } = await sql`select pg_terminate_backend(pid) from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock' and query like '%from "users"%'`.execute(deps.db)
    return rows.length > 0
  }
  await until(terminateWaiting, 'the recharge waits for the account')
  const { status, body } = await asked
  await lock.query('rollback')
  lock.release()

  assert.deepEqual([status, body.code], [503, 503], JSON.stringify(body))
  assert.equal(await creditOf(owner.id), before)
  assert.equal((await bandwidthOf(id)).quota_bytes, 5 * GIB)
})

test('an unmetered sandbox has -1 remaining, is never capped, and is not charged for a recharge', async () => {
  const free = await createHostedApp({ config: { bandwidthQuotaBytes: -1 } })
  const them = await free.user({ plan: 'pro' })
  const { id } = (await free.create(them)).body.data
  free.host.vms.get(id)!.network.send(10 * GIB)

  const { body } = await free.send('POST', `/v1/sandboxes/${id}/bandwidth/recharge`, them, { add_bytes: GIB })

  assert.deepEqual(body.data, {
    id,
    quota_bytes: -1,
    used_bytes: 10 * GIB,
    ingress_bytes: 0,
    remaining_bytes: -1,
    capped: false,
  })
})
