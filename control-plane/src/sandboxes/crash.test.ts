/**
 * The control plane is killed with SIGKILL between any two steps of a create. Another process, which stays alive, must
 * roll back what was begun: no resource leaks, and nothing is charged.
 *
 * To stop a create at a step, the fake host delays its response, or the test locks the row that the next transaction
 * needs, until the process is dead.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { sql } from 'kysely'
import { startApiProcess } from '../testing/api-process.ts'
import type { TestUser } from '../testing/app.ts'
import { createHostedApp } from '../testing/with-host.ts'

const hosted = await createHostedApp()
const { deps, host, user, create, send, assertNothingLeft } = hosted

test.beforeEach(() => {
  host.hooks = {}
})

const rowOf = (who: TestUser) =>
  deps.db.selectFrom('sandboxes').selectAll().where('user_id', '=', who.id).orderBy('id', 'desc').executeTakeFirst()
const statusOf = async (who: TestUser) => (await rowOf(who))?.status
const isWaitingForLock = async () => {
  const { rows } = await sql`select from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'`.execute(deps.db)
  return rows.length > 0
}

/** Locks a row while `during` runs. */
async function withRowLocked(text: ReturnType<typeof sql>, during: () => Promise<void>): Promise<void> {
  await deps.db.transaction().execute(async (tx) => {
    await text.execute(tx)
    await during()
  })
}

async function assertFailedAndReleased(who: TestUser): Promise<void> {
  await until(async () => (await statusOf(who)) === 'failed', 'the sandbox is failed', 15_000)
  assert.match((await rowOf(who))!.status_reason ?? '', /service stopped/)
  await assertNothingLeft()
  // The cap of one is not used up, and the name is free.
  const again = await create(who, { name: 'crashed' })
  assert.equal(again.status, 200, JSON.stringify(again.body))
  await send('DELETE', `/v1/sandboxes/${again.body.data.id}`, who)
  await until(async () => (await statusOf(who)) === 'destroyed')
}

test('killed before the first transaction commits: no sandbox exists', async () => {
  const who = await user({ plan: 'free' })
  const api = await startApiProcess(hosted)

  await withRowLocked(sql`select from users where id = ${who.id} for update`, async () => {
    const posted = api.create(who, { name: 'crashed' }).catch(() => 0)
    await until(isWaitingForLock)
    await api.kill()
    await posted
  })

  assert.equal(await rowOf(who), undefined)
  await assertNothingLeft()
})

for (const hook of ['beforeCreate', 'afterCreate'] as const) {
  test(`killed while the host creates the VM (${hook}): the sandbox is failed and its VM deleted`, async () => {
    const who = await user({ plan: 'free' })
    const api = await startApiProcess(hosted)
    const gate = Promise.withResolvers<void>()
    let reached = false
    host.hooks = {
      [hook]: () => {
        reached = true
        return gate.promise
      },
    }
    const posted = api.create(who, { name: 'crashed' }).catch(() => 0)
    await until(() => reached)

    await api.kill()
    await posted
    host.hooks = {}

    await assertFailedAndReleased(who)
    gate.resolve()
  })
}

test('killed after the host has answered and before the commit: the sandbox is failed and its VM deleted', async () => {
  const who = await user({ plan: 'free' })
  const api = await startApiProcess(hosted)
  const gate = Promise.withResolvers<void>()
  host.hooks = { afterCreate: () => gate.promise }
  const posted = api.create(who, { name: 'crashed' }).catch(() => 0)
  await until(() => [...host.vms.values()].some((vm) => vm.state === 'running'))

  await withRowLocked(sql`select from sandboxes where user_id = ${who.id} for update`, async () => {
    gate.resolve()
    await until(isWaitingForLock)
    await api.kill()
    await posted
  })
  host.hooks = {}

  await assertFailedAndReleased(who)
})

test('killed after the commit: the sandbox exists, and its Idempotency-Key returns the response', async () => {
  const who = await user({ plan: 'free' })
  const api = await startApiProcess(hosted)
  const posted = api.create(who, { name: 'crashed' }, { 'idempotency-key': 'my-key' }).catch(() => 0)
  await until(async () => (await statusOf(who)) === 'running')

  await api.kill()
  await posted
  const replayed = await create(who, { name: 'crashed' }, { 'idempotency-key': 'my-key' })

  assert.deepEqual([replayed.status, replayed.headers['idempotent-replayed']], [200, 'true'])
  assert.equal(replayed.body.data.id, (await rowOf(who))!.id)
  await assertNothingLeft()
  await send('DELETE', `/v1/sandboxes/${replayed.body.data.id}`, who)
  await until(async () => (await statusOf(who)) === 'destroyed')
})

test('killed during the create: the same Idempotency-Key creates it again once the process is known to be dead', async () => {
  const who = await user({ plan: 'free' })
  const api = await startApiProcess(hosted)
  const never = new Promise<never>(() => {})
  let held = ''
  host.hooks = {
    beforeCreate: ({ id }) => {
      held ||= id
      return held === id ? never : undefined
    },
  }
  const posted = api.create(who, { name: 'crashed' }, { 'idempotency-key': 'again' }).catch(() => 0)
  await until(() => held !== '')

  await api.kill()
  await posted
  const response = await create(who, { name: 'crashed' }, { 'idempotency-key': 'again' })

  assert.equal(response.status, 200, JSON.stringify(response.body))
  assert.notEqual(response.body.data.id, held)
  await assertNothingLeft()
  await send('DELETE', `/v1/sandboxes/${response.body.data.id}`, who)
  await until(async () => (await statusOf(who)) === 'destroyed')
})

test('a process that was suspended and continues can neither commit nor keep its VM', async () => {
  const who = await user({ plan: 'free' })
  const api = await startApiProcess(hosted)
  const gate = Promise.withResolvers<void>()
  let reached = false
  host.hooks = {
    afterCreate: () => {
      reached = true
      return gate.promise
    },
  }
  const posted = api.create(who, { name: 'crashed' })
  await until(() => reached)
  const suspended = (await rowOf(who))!

  api.child.kill('SIGSTOP')
  await until(async () => (await statusOf(who)) === 'failed', 'the sandbox is failed', 15_000)
  gate.resolve()
  api.child.kill('SIGCONT')

  assert.equal(await posted, 503)
  const row = (await rowOf(who))!
  assert.deepEqual([row.status, row.fence], ['failed', suspended.fence + 1])
  await assertNothingLeft()
  await api.kill()
})
