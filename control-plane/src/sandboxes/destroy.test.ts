import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { SANDBOX_STATUSES } from '@warren/protocol'
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

test('a sandbox is destroyed: destroying at once, destroyed within seconds, and all of it is gone', async () => {
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

test('every state: destroyed for what has ended, destroying for all else', async () => {
  for (const status of SANDBOX_STATUSES) {
    const row = await insertSandbox(deps.db, ada.id, status, { owner: deps.processId })
    const answer = await destroy(row.id)
    const ended = status === 'destroyed' || status === 'failed'
    assert.deepEqual([status, answer.body.data.status], [status, ended ? 'destroyed' : 'destroying'])
    await until(async () => (await statusOf(row.id)) === 'destroyed')
  }
})

test("someone else's sandbox is not found", async () => {
  const { id } = (await create(ada)).body.data
  const bob = await user()

  const answer = await destroy(id, bob)

  assert.deepEqual([answer.status, answer.body.data.message], [404, 'sandbox not found'])
  assert.equal(await statusOf(id), 'running')
  await destroy(id)
})

test('deletes that race answer alike, and the VM is deleted once', async () => {
  const { id } = (await create(ada)).body.data
  host.calls.length = 0

  const answers = await Promise.all(Array.from({ length: 8 }, () => destroy(id)))
  await until(async () => (await statusOf(id)) === 'destroyed')

  assert.ok(answers.every((answer) => answer.status === 200))
  assert.equal(host.calls.filter((call) => call === `DELETE /v1/vms/${id}`).length, 1)
  await assertNothingLeft()
})

test('a VM that the host does not know any more is as good as destroyed', async () => {
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

test('a host that fails is asked again until it is done', async () => {
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

test('the VM of a host that is dead waits for it, and is given up with a host that stays dead', async () => {
  const { id } = (await create(ada)).body.data
  const other = (await create(ada)).body.data.id
  await host.stop()
  await destroy(id)
  await until(async () => (await deps.db.selectFrom('hosts').select('status').executeTakeFirst())?.status === 'dead')
  assert.equal(await statusOf(id), 'destroying')

  await sql`update hosts set seen_at = now() - make_interval(secs => ${LOST_AFTER_S + 1})`.execute(deps.db)
  await until(async () => (await statusOf(id)) === 'destroyed', 'the sandbox is destroyed', 15_000)
  const held = await deps.db.selectFrom('sandboxes').select('reserved_mib').where('id', '=', id).executeTakeFirst()
  assert.equal(held?.reserved_mib, 256, 'the memory of a VM that may still run is not promised again')
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

test('a destroying row that lost its job gets one', async () => {
  const { id } = (await create(ada)).body.data
  await deps.db.transaction().execute((tx) => beginMove(tx, id, 'destroy'))

  await reconcile.run(deps)

  await until(async () => (await statusOf(id)) === 'destroyed')
})
