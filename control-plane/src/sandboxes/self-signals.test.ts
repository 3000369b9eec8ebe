import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { sql } from 'kysely'
import { watchHosts } from '../hosts/heartbeat.ts'
import { FakeHostFailure } from '../testing/fake-host.ts'
import { createHostedApp } from '../testing/with-host.ts'

const { deps, host, user, create, send, get, assertNothingLeft } = await createHostedApp()
const ada = await user()

test.beforeEach(() => {
  host.hooks = {}
})

const viewOf = async (id: string) => (await get(`/v1/sandboxes/${id}`, ada.key)).body.data
const waitForStatus = (id: string, status: string) =>
  until(async () => (await viewOf(id)).status === status, `${id} is ${status}`, 15_000)
const eventsOf = async (id: string) => (await get(`/v1/sandboxes/${id}/events`, ada.key)).body.data.data

test('a sandbox that requests its pause is paused once, with the text of the request as reason', async () => {
  const { id } = (await create(ada)).body.data
  host.vms.get(id)!.signal = { action: 'pause', reason: 'done for\u0007 today' }

  await waitForStatus(id, 'paused')
  const view = await viewOf(id)
  await send('POST', `/v1/sandboxes/${id}/resume`, ada)
  await waitForStatus(id, 'running')
  await watchHosts.run(deps)
  await watchHosts.run(deps)

  assert.equal(view.status_reason, 'done for today')
  const events = await eventsOf(id)
  assert.deepEqual(
    events.map((event: { to: string; actor: string }) => `${event.to} ${event.actor}`),
    ['running user', 'resuming user', 'paused sandbox', 'pausing sandbox', 'running user'],
  )
  assert.equal((await viewOf(id)).status, 'running')
})

test('a sandbox that requests its deletion is deleted, and keeps the reason', async () => {
  const { id } = (await create(ada)).body.data
  host.vms.get(id)!.signal = { action: 'delete' }

  await waitForStatus(id, 'destroyed')

  assert.equal((await viewOf(id)).status_reason, 'deleted from inside the sandbox')
  assert.equal((await eventsOf(id))[0].actor, 'sandbox')
  await assertNothingLeft()
})

test('a deletion request is applied even while the sandbox is pausing', async () => {
  const { id } = (await create(ada)).body.data
  host.hooks = { beforePause: () => new Promise(() => {}) }
  await send('POST', `/v1/sandboxes/${id}/pause`, ada)
  host.vms.get(id)!.signal = { action: 'delete', reason: 'no more' }

  await waitForStatus(id, 'destroyed')

  assert.equal((await viewOf(id)).status_reason, 'no more')
})

test('a signal that was seen before a pause and a resume is not applied after them', async () => {
  const { id } = (await create(ada)).body.data
  await send('POST', `/v1/sandboxes/${id}/pause`, ada)
  await waitForStatus(id, 'paused')
  await send('POST', `/v1/sandboxes/${id}/resume`, ada)
  await waitForStatus(id, 'running')
  const { fence } = await deps.db.selectFrom('sandboxes').select('fence').where('id', '=', id).executeTakeFirstOrThrow()
  const vm = host.vms.get(id)!

  // The first state contains the signal. When the host is asked again, by this test or by the heartbeat of the worker, the
  // VM has been paused since.
  let asked = 0
  host.hooks = {
    state: () => {
      asked++
      if (asked === 1) vm.signal = { action: 'pause' }
      else delete vm.signal
    },
  }
  await watchHosts.run(deps)
  host.hooks = {}
  delete vm.signal

  const row = await deps.db.selectFrom('sandboxes').selectAll().where('id', '=', id).executeTakeFirstOrThrow()
  assert.ok(asked >= 2)
  assert.deepEqual([row.status, row.fence], ['running', fence])
})

test('a pause by signal that failed is retried only after a while', async () => {
  const { id } = (await create(ada)).body.data
  let tries = 0
  host.hooks = {
    beforePause: () => {
      tries++
      throw new FakeHostFailure('pause_failed', 'no space left')
    },
  }
  host.vms.get(id)!.signal = { action: 'pause', reason: 'rest' }
  await until(async () => (await viewOf(id)).status_reason === 'could not be paused: no space left')

  await watchHosts.run(deps)
  await watchHosts.run(deps)
  const soon = tries
  await sql`update sandboxes set status_since = now() - interval '31 seconds' where id = ${id}`.execute(deps.db)
  await until(() => tries === 2)
  host.hooks = {}

  assert.equal(soon, 1)
})
