import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { sql } from 'kysely'
import { startApiProcess } from '../testing/api-process.ts'
import type { TestUser } from '../testing/app.ts'
import { FakeHostFailure } from '../testing/fake-host.ts'
import { createHostedApp } from '../testing/with-host.ts'
import { addMissingResize } from './missing-resize.ts'

const hosted = await createHostedApp()
const { app, deps, host, user, get, send, create } = hosted

test.beforeEach(() => {
  host.hooks = {}
})

const resize = (who: TestUser, id: string, disk_mib: unknown) =>
  send('POST', `/v1/sandboxes/${id}/resize`, who, { disk_mib })
const resizeWith = async (who: TestUser, id: string, disk_mib: number, key: string) => {
  const response = await app.inject({
    method: 'POST',
    url: `/v1/sandboxes/${id}/resize`,
    headers: { ...who.headers, 'idempotency-key': key },
    payload: { disk_mib },
  })
  return { status: response.statusCode, headers: response.headers, body: response.json() }
}
const newSandbox = async (who: TestUser): Promise<string> => (await create(who)).body.data.id
const sizesOf = async (who: TestUser, id: string) => [
  (await send('GET', `/v1/sandboxes/${id}`, who)).body.data.disk_mib,
  host.vms.get(id)!.body.disk_mib,
]
const countIntervals = async (id: string) =>
  (await deps.db.selectFrom('usage_intervals').select('id').where('sandbox_id', '=', id).execute()).length
const isRecorded = async (id: string) =>
  (await deps.db.selectFrom('sandbox_resizes').select('sandbox_id').where('sandbox_id', '=', id).execute()).length > 0

test('a disk grows through all sizes, each is a usage interval, an event and an entry in the audit log', async () => {
  const ada = await user({ plan: 'enterprise' })
  await send('POST', '/v1/webhook-endpoints', ada, { url: 'https://hooks.invalid/', events: ['sandbox.resize'] })
  const id = await newSandbox(ada)
  const sizes = [20_480, 30_720, 40_960, 51_200, 61_440]

  for (const size of sizes) {
    const { status, body } = await resize(ada, id, size)
    assert.deepEqual([status, body.data], [200, { id, disk_mib: size }])
    assert.deepEqual(await sizesOf(ada, id), [size, size])
  }

  const intervals = await deps.db
    .selectFrom('usage_intervals')
    .select(['disk_mib', 'started_at', 'ended_at'])
    .where('sandbox_id', '=', id)
    .orderBy('id')
    .execute()
  assert.deepEqual(
    intervals.map((one) => one.disk_mib),
    [10_240, ...sizes],
  )
  for (const [i, { ended_at }] of intervals.slice(0, -1).entries()) {
    assert.deepEqual(ended_at, intervals[i + 1]!.started_at)
  }
  const deliveries = await deps.db.selectFrom('webhook_deliveries').select('payload').orderBy('seq').execute()
  assert.deepEqual(
    deliveries.map(({ payload }) => JSON.parse(payload).data.disk_mib),
    sizes,
  )
  const audit = (await get('/v1/audit?action=sandbox.resize', ada.key)).body.data.data
  assert.deepEqual([audit.length, audit[0].target], [5, id])
})

test('another size, a smaller or equal one, and one above the plan are 400; nothing changes', async () => {
  const [ada, bob] = [await user({ plan: 'beginner' }), await user()]
  const id = await newSandbox(ada)

  for (const [size, code] of [
    [10_240, 'validation_failed'],
    [15_000, 'validation_failed'],
    [0, 'validation_failed'],
    ['20480', 'validation_failed'],
    [undefined, 'validation_failed'],
    [40_960, 'plan_limit'],
  ] as const) {
    const { status, body } = await resize(ada, id, size)
    assert.deepEqual([status, body.data.code, typeof body.data.disk_mib], [400, code, 'string'])
  }
  assert.equal((await resize(bob, id, 20_480)).status, 404)
  assert.deepEqual(await sizesOf(ada, id), [10_240, 10_240])
})

test('a sandbox that is not running is 409', async () => {
  const ada = await user()
  const id = await newSandbox(ada)
  await send('POST', `/v1/sandboxes/${id}/pause`, ada)
  await until(async () => (await send('GET', `/v1/sandboxes/${id}`, ada)).body.data.status === 'paused')

  const { status, body } = await resize(ada, id, 20_480)

  assert.deepEqual([status, body.data.message], [409, 'sandbox is paused, expected running'])
})

test('a repeated Idempotency-Key grows once and returns the same response', async () => {
  const ada = await user()
  const id = await newSandbox(ada)

  const first = await resizeWith(ada, id, 20_480, 'grow')
  const second = await resizeWith(ada, id, 20_480, 'grow')

  assert.deepEqual(second.body, first.body)
  assert.deepEqual([second.status, second.headers['idempotent-replayed']], [200, 'true'])
})

test('of concurrent resizes to one size all succeed, and one to another size is 409', async () => {
  const ada = await user()
  const id = await newSandbox(ada)
  const gate = Promise.withResolvers<void>()
  host.hooks = { beforeResize: () => gate.promise }
  const findLease = async () =>
    (
      await deps.db.selectFrom('sandbox_resizes').select('retry_at').where('sandbox_id', '=', id).executeTakeFirst()
    )?.retry_at.getTime() ?? 0

  const one = resize(ada, id, 20_480)
  await until(async () => (await findLease()) > 0, 'the first has begun')
  const lease = await findLease()
  const two = resize(ada, id, 20_480)
  await until(async () => (await findLease()) > lease, 'the second has joined it')
  const other = await resize(ada, id, 30_720)
  gate.resolve()

  assert.deepEqual([(await one).status, (await two).status], [200, 200])
  assert.deepEqual([other.status, other.body.data.code], [409, 'wrong_state'])
  assert.deepEqual(await sizesOf(ada, id), [20_480, 20_480])
  assert.equal(await countIntervals(id), 2)
})

test('a pause, a fork and a delete during a resize: the row and the disk agree', async () => {
  for (const [verb, body] of [
    ['pause', undefined],
    ['fork', { live: true }],
    ['delete', undefined],
  ] as const) {
    const ada = await user({ plan: 'enterprise' })
    const id = await newSandbox(ada)
    const gate = Promise.withResolvers<void>()
    const reached = Promise.withResolvers<void>()
    host.hooks = {
      beforeResize: () => {
        reached.resolve()
        return gate.promise
      },
    }

    const resizing = resize(ada, id, 20_480)
    await reached.promise
    const other =
      verb === 'delete'
        ? send('DELETE', `/v1/sandboxes/${id}`, ada)
        : send('POST', `/v1/sandboxes/${id}/${verb}`, ada, body)
    if (verb !== 'fork') await other
    gate.resolve()

    if (verb === 'delete') {
      assert.equal((await resizing).status, 409)
      await until(async () => !(await isRecorded(id)) && !host.vms.has(id), 'it is deleted')
      continue
    }
    assert.equal((await resizing).status, 200, verb)
    assert.deepEqual(await sizesOf(ada, id), [20_480, 20_480])
    if (verb === 'pause') continue
    const child = (await other).body.data.id
    await until(async () => (await sizesOf(ada, child)).join() === '20480,20480', 'the fork has the size')
    assert.equal(await isRecorded(child), false)
  }
})

test('a host that refuses changes nothing', async () => {
  const ada = await user()
  const id = await newSandbox(ada)
  host.hooks = {
    beforeResize: () => {
      throw new FakeHostFailure('no_capacity', 'disk full')
    },
  }

  const full = await resize(ada, id, 20_480)
  host.hooks = {
    beforeResize: () => {
      throw new Error('bug')
    },
  }
  const failed = await resize(ada, id, 20_480)

  host.hooks = {
    beforeResize: () => {
      throw new FakeHostFailure('fence_lost', 'paused and resumed')
    },
  }
  const overtaken = await resize(ada, id, 20_480)

  assert.deepEqual([full.status, full.body.message], [503, 'the host has no room for a larger disk'])
  assert.deepEqual([overtaken.status, overtaken.headers['retry-after']], [503, '1'])
  assert.deepEqual([failed.status, failed.body.message], [502, 'the disk could not be grown: the host failed'])
  assert.equal(await isRecorded(id), false)
  assert.deepEqual(await sizesOf(ada, id), [10_240, 10_240])
})

test('a resize whose host did not answer is finished when it does, and its Idempotency-Key has the response', async () => {
  const ada = await user()
  const id = await newSandbox(ada)
  host.hooks = {
    afterResize: async () => {
      host.hooks = {}
      await host.stop()
    },
  }

  const { status } = await resizeWith(ada, id, 20_480, 'lost')
  assert.equal(status, 502)
  await host.start()
  await until(async () => (await sizesOf(ada, id)).join() === '20480,20480', 'the row and the disk agree')

  assert.equal(await isRecorded(id), false)
  const repeated = await resizeWith(ada, id, 20_480, 'lost')
  assert.deepEqual([repeated.status, repeated.body.data], [200, { id, disk_mib: 20_480 }])
})

test('a resize that the guest does not confirm is charged, repeated, and can be replaced by a larger one', async () => {
  const ada = await user({ plan: 'enterprise' })
  const id = await newSandbox(ada)
  host.hooks = {
    afterResize: (_, { disk_mib }) => {
      if (disk_mib === 30_720) throw new FakeHostFailure('guest_unreachable', 'file system is read-only')
    },
  }

  const failed = await resize(ada, id, 30_720)
  assert.equal(failed.status, 502)
  assert.match(failed.body.message, /^the disk has grown, but the guest has not grown its file system yet/)
  assert.deepEqual(await sizesOf(ada, id), [30_720, 30_720])
  assert.deepEqual([await isRecorded(id), await countIntervals(id)], [true, 2])

  const again = await resize(ada, id, 30_720)
  const smaller = await resize(ada, id, 20_480)
  const larger = await resize(ada, id, 40_960)

  assert.deepEqual([again.status, smaller.status, larger.status], [502, 400, 200])
  assert.deepEqual(await sizesOf(ada, id), [40_960, 40_960])
  assert.deepEqual([await isRecorded(id), await countIntervals(id)], [false, 3])
})

test('a disk that differs from its row is grown to the larger size, without an event if the row has it', async () => {
  const ada = await user({ plan: 'enterprise' })
  const hook = { url: 'https://hooks.invalid/', events: ['sandbox.resize'] }
  const endpoint = (await send('POST', '/v1/webhook-endpoints', ada, hook)).body.data.id
  const [larger, smaller, pending] = [await newSandbox(ada), await newSandbox(ada), await newSandbox(ada)]
  // As a fork of a disk that was growing; as a VM from a generation before its disk grew; as after a killed host agent.
  host.vms.get(larger)!.body.disk_mib = 20_480
  await deps.db.updateTable('sandboxes').set({ disk_mib: 20_480 }).where('id', '=', smaller).execute()
  host.vms.get(pending)!.growPending = true

  for (const id of [larger, smaller]) {
    await until(async () => (await sizesOf(ada, id)).join() === '20480,20480', 'the row and the disk agree')
  }
  await until(() => host.vms.get(pending)!.growPending === false, 'the file system has the size of the disk')

  for (const id of [larger, smaller, pending]) {
    await until(async () => !(await isRecorded(id)), 'the resize is finished')
  }
  const events = await deps.db
    .selectFrom('webhook_deliveries')
    .select('payload')
    .where('endpoint_id', '=', endpoint)
    .execute()
  assert.deepEqual(
    events.map(({ payload }) => JSON.parse(payload).data.id),
    [larger],
  )
})

test('a resize that finishes while the sandbox is compared with its VM is not recorded again', async () => {
  const ada = await user({ plan: 'enterprise' })
  const id = await newSandbox(ada)
  const row = await deps.db.selectFrom('sandboxes').selectAll().where('id', '=', id).executeTakeFirstOrThrow()
  let comparison: Promise<void> | undefined
  let hasEnded = false

  await deps.db.transaction().execute(async (tx) => {
    await tx.updateTable('sandboxes').set({ disk_mib: 20_480 }).where('id', '=', id).execute()
    host.vms.get(id)!.body.disk_mib = 20_480
    comparison = addMissingResize(deps, row, { state: 'running', disk_mib: 20_480 }).finally(() => {
      hasEnded = true
    })
    await until(async () => hasEnded || (await countWaiting()) > 0, 'it has ended or waits for the resize')
  })
  await comparison

  assert.equal(await isRecorded(id), false)
})

async function countWaiting(): Promise<number> {
  const { rows } = await sql<{ n: number }>`select count(*) as n from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'`.execute(deps.db)
  return rows[0]!.n
}

test('an unfinished resize waits while the sandbox is paused, and is forgotten when it is deleted', async () => {
  const ada = await user({ plan: 'enterprise' })
  const [kept, deleted] = [await newSandbox(ada), await newSandbox(ada)]
  for (const id of [kept, deleted]) {
    await send('POST', `/v1/sandboxes/${id}/pause`, ada)
    await until(async () => (await send('GET', `/v1/sandboxes/${id}`, ada)).body.data.status === 'paused')
    await deps.db.insertInto('sandbox_resizes').values({ sandbox_id: id, disk_mib: 20_480 }).execute()
  }

  await send('DELETE', `/v1/sandboxes/${deleted}`, ada)
  await until(async () => !(await isRecorded(deleted)), 'the record is deleted')
  assert.deepEqual([await isRecorded(kept), await sizesOf(ada, kept)], [true, [10_240, 10_240]])
  await send('POST', `/v1/sandboxes/${kept}/resume`, ada)
  await until(async () => (await sizesOf(ada, kept)).join() === '20480,20480', 'the row and the disk agree')
})

const crashPoints = await mkdtemp(path.join(tmpdir(), 'warren-crash-points-'))
after(() => rm(crashPoints, { recursive: true, force: true }))

for (const point of ['resize.begun', 'resize.grown', 'resize.done']) {
  test(`killed at ${point}: the disk and the row agree, and the Idempotency-Key returns the response`, async () => {
    const ada = await user()
    const id = await newSandbox(ada)
    await writeFile(path.join(crashPoints, point), 'kill')
    const api = await startApiProcess(hosted, { crashPoints })

    const headers = { ...ada.headers, 'idempotency-key': point }
    const posted = api
      .send('POST', `/v1/sandboxes/${id}/resize`, { ...ada, headers }, { disk_mib: 20_480 })
      .catch(() => 0)
    await until(() => existsSync(path.join(crashPoints, `${point}.reached`)), `${point} is reached`, 120_000)
    await posted
    await until(async () => (await sizesOf(ada, id)).join() === '20480,20480', 'the row and the disk agree')
    const repeated = await resizeWith(ada, id, 20_480, point)

    assert.deepEqual([repeated.status, repeated.body.data], [200, { id, disk_mib: 20_480 }])
    assert.equal(await countIntervals(id), 2)
  })
}

test('a resize whose last transaction fails is finished, and the Idempotency-Key returns the response', async () => {
  const ada = await user()
  const id = await newSandbox(ada)
  const file = path.join(crashPoints, 'resize.grown')
  await rm(`${file}.reached`, { force: true })
  await writeFile(file, 'hold')
  const api = await startApiProcess(hosted, { crashPoints })

  const headers = { ...ada.headers, 'idempotency-key': 'broken' }
  const posted = api.send('POST', `/v1/sandboxes/${id}/resize`, { ...ada, headers }, { disk_mib: 20_480 })
  await until(() => existsSync(`${file}.reached`), 'the disk has grown', 120_000)
  await deps.db.transaction().execute(async (tx) => {
    await sql`select from sandboxes where id = ${id} for update`.execute(tx)
    await rm(file)
    // The transaction of the process waits for this one, and its connection is closed meanwhile.
    await until(async () => {
      const { rows } = await sql<{ pid: number }>`select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock' and query like '%for no key update%'`.execute(
        deps.db,
      )
      return rows.length > 0
    }, 'the last transaction has begun')
  })

  assert.equal(await posted, 503)
  await until(async () => (await sizesOf(ada, id)).join() === '20480,20480', 'the row and the disk agree')
  const repeated = await resizeWith(ada, id, 20_480, 'broken')
  assert.deepEqual([repeated.status, repeated.body.data], [200, { id, disk_mib: 20_480 }])
  await api.kill()
})
