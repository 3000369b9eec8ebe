import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { SANDBOX_STATUSES, vmmMemoryMib } from '@warren/protocol'
import { sql } from 'kysely'
import { insertSandbox } from '../testing/sandboxes.ts'
import { createHostedApp } from '../testing/with-host.ts'
import { LOST_AFTER_S } from './destroy.ts'
import { beginMove } from './move.ts'
import { reconcile } from './reconcile.ts'

const { deps, host, user, create, send, get, assertNothingLeft } = await createHostedApp()
const ada = await user()

test.beforeEach(() => {
  host.hooks = {}
})

const destroy = (id: string, who = ada) => send('DELETE', `/v1/sandboxes/${id}`, who)
const statusOf = async (id: string, who = ada) => (await get(`/v1/sandboxes/${id}`, who.key)).body.data.status

test('a destroyed sandbox is destroying at once, destroyed within seconds, and holds no resources', async () => {
  const { id } = (await create(ada)).body.data

  const first = await destroy(id)
  await until(async () => (await statusOf(id)) === 'destroyed')
  const again = await destroy(id)

  assert.deepEqual([first.status, first.body.data], [200, { id, status: 'destroying' }])
  assert.deepEqual(again.body.data, { id, status: 'destroyed' })
  const view = (await get(`/v1/sandboxes/${id}`, ada.key)).body.data
  assert.ok(view.destroyed_at)
  await assertNothingLeft()
})

test('DELETE returns destroyed for a sandbox that has ended and destroying for every other status', async () => {
  for (const status of SANDBOX_STATUSES) {
    const row = await insertSandbox(deps.db, ada.id, status, { owner: deps.processId })
    const response = await destroy(row.id)
    const ended = status === 'destroyed' || status === 'failed'
    assert.deepEqual([status, response.body.data.status], [status, ended ? 'destroyed' : 'destroying'])
    await until(async () => (await statusOf(row.id)) === 'destroyed')
  }
})

test("someone else's sandbox is not found", async () => {
  const { id } = (await create(ada)).body.data
  const bob = await user()

  const response = await destroy(id, bob)

  assert.deepEqual([response.status, response.body.data.message], [404, 'sandbox not found'])
  assert.equal(await statusOf(id), 'running')
  await destroy(id)
})

test('concurrent deletes get the same response, and the VM is deleted once', async () => {
  const { id } = (await create(ada)).body.data
  host.calls.length = 0

  const responses = await Promise.all(Array.from({ length: 8 }, () => destroy(id)))
  await until(async () => (await statusOf(id)) === 'destroyed')

  assert.ok(responses.every((response) => response.status === 200))
  assert.equal(host.calls.filter((call) => call === `DELETE /v1/vms/${id}`).length, 1)
  await assertNothingLeft()
})

test('a VM that the host no longer has counts as destroyed', async () => {
  const { id } = (await create(ada)).body.data
  host.loseVm(id)

  await destroy(id)

  await until(async () => ['destroyed', 'failed'].includes(await statusOf(id)))
  await until(() =>
    assertNothingLeft().then(
      () => true,
      () => false,
    ),
  )
})

test('a failing host is asked again until it succeeds', async () => {
  const { id } = (await create(ada)).body.data
  let asked = 0
  host.hooks = {
    beforeDelete: () => {
      asked++
      if (asked < 3) throw new Error('not now')
    },
  }

  await destroy(id)

  await until(async () => (await statusOf(id)) === 'destroyed', 'the sandbox is destroyed', 20_000)
  await assertNothingLeft()
})

test('a destroy waits for a dead host, and ends without it when the host is lost', async () => {
  const { id } = (await create(ada)).body.data
  const other = (await create(ada)).body.data.id
  await host.stop()
  await destroy(id)
  await until(async () => (await deps.db.selectFrom('hosts').select('status').executeTakeFirst())?.status === 'dead')
  assert.equal(await statusOf(id), 'destroying')

  await sql`update hosts set seen_at = now() - make_interval(secs => ${LOST_AFTER_S + 1})`.execute(deps.db)
  await until(async () => (await statusOf(id)) === 'destroyed', 'the sandbox is destroyed', 15_000)
  const held = await deps.db.selectFrom('sandboxes').select('reserved_mib').where('id', '=', id).executeTakeFirst()
  const wanted = vmmMemoryMib({ vcpu: 1, mem_mib: 256 }, host.accel)
  assert.equal(held?.reserved_mib, wanted, 'the memory of a VM that may still run is not promised again')
  await host.start()

  await until(() => !host.vms.has(id))
  await until(() =>
    assertNothingLeft().then(
      () => true,
      () => false,
    ),
  )
  assert.equal(await statusOf(other), 'running')
})

test('a destroying sandbox without a job gets one', async () => {
  const { id } = (await create(ada)).body.data
  await deps.db.transaction().execute((tx) => beginMove(tx, id, 'destroy'))

  await reconcile.run(deps)

  await until(async () => (await statusOf(id)) === 'destroyed')
})
