import assert from 'node:assert/strict'
import { test } from 'node:test'
import { failure } from '@warren/kit/failure'
import { passTime } from '@warren/kit/testing/pass-time'
import { until } from '@warren/kit/testing/until'
import { ok, success } from '@warren/protocol'
import { sql } from 'kysely'
import { Type } from 'typebox'
import type { App } from '../http/server.ts'
import { writeHeartbeat } from '../jobs/processes.ts'
import { createTestApp, reconnect } from '../testing/app.ts'
import { deleteExpiredIdempotencyKeys } from './delete-expired-idempotency-keys.ts'
import { storeResponse } from './idempotency.ts'

let runs = 0
let gate = Promise.resolve()

const routes = (app: App) => {
  app.post(
    '/things/:id',
    {
      config: { access: 'user', idempotent: true },
      schema: {
        body: Type.Object({ fails: Type.Optional(Type.Boolean()), n: Type.Optional(Type.Integer()) }),
        response: { 200: success(Type.Object({ run: Type.Integer() })) },
      },
    },
    async (request) => {
      runs++
      const run = runs
      await gate
      if (request.body.fails) throw failure('wrong_state', 'not now')
      return ok({ run })
    },
  )
}

const { app, deps, user } = await createTestApp({ routes })
const ada = await user()
const bob = await user()
await writeHeartbeat(deps, [])

const post = async (key: string, body: object = {}, who = ada, on: App = app, path = '/things/1') => {
  const response = await on.inject({
    method: 'POST',
    url: path,
    headers: { ...who.headers, 'idempotency-key': key },
    payload: body,
  })
  return { status: response.statusCode, body: response.json(), replayed: response.headers['idempotent-replayed'] }
}

test('the same key and body get the same response without running again', async () => {
  const first = await post('a', { n: 1 })
  const before = runs

  const second = await post('a', { n: 1 })

  assert.equal(runs, before)
  assert.deepEqual(second, { ...first, replayed: 'true' })
})

test('the order of fields does not make a different request', async () => {
  const first = await post('order', { n: 1, fails: false })

  assert.deepEqual((await post('order', { fails: false, n: 1 })).body, first.body)
})

test('the same key with another body or path is 409', async () => {
  await post('b', { n: 1 })

  for (const again of [await post('b', { n: 2 }), await post('b', { n: 1 }, ada, app, '/things/2')]) {
    assert.deepEqual([again.status, again.body.data.code], [409, 'idempotency_key_reused'])
  }
})

test('two users may use the same key', async () => {
  const first = await post('shared')

  assert.notDeepEqual((await post('shared', {}, bob)).body, first.body)
})

test('a stored response survives a restart', async () => {
  const first = await post('restart')
  const restarted = await createTestApp({ database: reconnect(deps.database), routes })

  assert.deepEqual((await post('restart', {}, ada, restarted.app)).body, first.body)
})

test('simultaneous duplicates run once, even through two processes', async () => {
  const other = await createTestApp({ database: reconnect(deps.database), routes })
  const { promise, resolve } = Promise.withResolvers<void>()
  gate = promise
  const before = runs

  const responses = Array.from({ length: 6 }, (_, i) => post('burst', {}, ada, i % 2 ? app : other.app))
  await until(() => runs > before)
  resolve()
  gate = Promise.resolve()
  const bodies = (await Promise.all(responses)).map((response) => JSON.stringify(response.body))

  assert.equal(runs, before + 1)
  assert.equal(new Set(bodies).size, 1)
})

test('a failure is not stored, so the request can be repeated', async () => {
  const failed = await post('retry', { fails: true })
  const before = runs

  await post('retry', { fails: true })

  assert.equal(failed.status, 409)
  assert.equal(runs, before + 1)
})

test('the key of a process that died before its response is taken over', async () => {
  const { promise, resolve } = Promise.withResolvers<void>()
  gate = promise
  const before = runs
  const abandoned = post('orphan')
  await until(() => runs > before)
  await deps.db.updateTable('idempotency_keys').set({ owner: 'dead' }).where('key', '=', 'orphan').execute()
  gate = Promise.resolve()

  const response = await post('orphan')

  assert.deepEqual([response.status, response.body.data.run], [200, before + 2])
  resolve()
  await abandoned
})

test('while the process of a key is alive, a repetition waits for it', async () => {
  const { promise, resolve } = Promise.withResolvers<void>()
  gate = promise
  const before = runs
  const first = post('patient')
  await until(() => runs > before)
  const second = post('patient')
  const first300Ms = passTime(300, 'it must not be answered meanwhile').then(() => 'waiting')

  assert.equal(await Promise.race([second, first300Ms]), 'waiting')
  resolve()
  gate = Promise.resolve()
  assert.deepEqual((await second).body, (await first).body)
})

test('after a day a key can be used again', async () => {
  const first = await post('old', { n: 1 })
  await sql`update idempotency_keys set created_at = now() - interval '25 hours' where key = 'old'`.execute(deps.db)

  const second = await post('old', { n: 2 })

  assert.deepEqual([first.status, second.status], [200, 200])
})

test('the sweep deletes keys of the day before', async () => {
  await post('swept')
  await sql`update idempotency_keys set created_at = now() - interval '25 hours' where key = 'swept'`.execute(deps.db)

  await deleteExpiredIdempotencyKeys.run(deps)

  const row = await deps.db.selectFrom('idempotency_keys').selectAll().where('key', '=', 'swept').executeTakeFirst()
  assert.equal(row, undefined)
})

test('a response stored in the transaction of the operation is rolled back with it', async () => {
  const claim = { caller: `user:${ada.id}`, key: 'with-tx', stored: false }
  await deps.db
    .insertInto('idempotency_keys')
    .values({ caller: claim.caller, key: claim.key, request_hash: Buffer.alloc(32), owner: deps.processId })
    .execute()

  await assert.rejects(
    deps.db.transaction().execute(async (tx) => {
      await storeResponse(tx, claim, 200, '{}')
      throw new Error('the operation failed')
    }),
  )

  const row = await deps.db.selectFrom('idempotency_keys').selectAll().where('key', '=', 'with-tx').executeTakeFirst()
  assert.equal(row?.status, null)
})

test('an invalid key is 400', async () => {
  for (const key of ['x'.repeat(256), 'with space', '\x7f']) assert.equal((await post(key)).status, 400, key)
})
