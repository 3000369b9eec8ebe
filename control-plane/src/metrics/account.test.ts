import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { BANDWIDTH_HOURS_RETENTION_DAYS } from '@warren/protocol'
import { sql } from 'kysely'
import { deleteOldBandwidthHours } from '../bandwidth/delete-old-hours.ts'
import { recordCounts } from '../bandwidth/record-counts.ts'
import type { TestUser } from '../testing/app.ts'
import { createClockedApp } from '../testing/credit-clock.ts'
import { insertSandbox } from '../testing/sandboxes.ts'
import { LENGTH_CLASS_SECONDS } from './overlapping-intervals.ts'

const { deps, host, user, create, send, get, advance } = await createClockedApp({ host: { memMib: 10_000_000 } })

const databaseTime = async (): Promise<number> => {
  const { rows } = await sql<{ now: Date }>`select now() as now`.execute(deps.db)
  return rows[0]!.now.getTime()
}
const at = (ms: number) => new Date(ms).toISOString()
const metricsOf = async (who: TestUser, fromMs: number, toMs: number) =>
  (await get(`/v1/metrics?from=${at(fromMs)}&to=${at(toMs)}`, who.key)).body.data
const seriesOf = async (who: TestUser, fromMs: number, toMs: number, bucket = 'hour') =>
  (await get(`/v1/metrics/timeseries?bucket=${bucket}&from=${at(fromMs)}&to=${at(toMs)}`, who.key)).body.data
const waitForStatus = (who: TestUser, id: string, status: string) =>
  until(async () => (await get(`/v1/sandboxes/${id}`, who.key)).body.data.status === status)
const move = async (who: TestUser, id: string, verb: 'pause' | 'resume', status: string) => {
  assert.equal((await send('POST', `/v1/sandboxes/${id}/${verb}`, who)).status, 202)
  await waitForStatus(who, id, status)
}
const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS
const NOTHING = {
  spawned: 0,
  destroyed: 0,
  lifetime_seconds: { min: 0, p50: 0, p95: 0, average: 0 },
  compute: { vcpu_seconds: 0, mem_mib_seconds: 0, disk_mib_seconds: 0 },
  bandwidth_bytes: { egress: 0, ingress: 0 },
  by_shape: [],
}
const NONE = Object.fromEntries(
  'creating running pausing paused resuming forking error destroying destroyed failed'
    .split(' ')
    .map((status) => [status, 0]),
)

test('an account without sandboxes has zeros for every status and value', async () => {
  const newcomer = await user()
  const toMs = await databaseTime()
  const fromMs = toMs - 2 * HOUR_MS

  assert.deepEqual(await metricsOf(newcomer, fromMs, toMs), {
    current: NONE,
    window: { from: at(fromMs), to: at(toMs), ...NOTHING },
  })
  const { buckets } = await seriesOf(newcomer, fromMs, toMs)
  assert.ok(buckets.length === 2 || buckets.length === 3, 'a full hour may be in the middle')
  for (const { spawned, destroyed, running } of buckets) assert.deepEqual([spawned, destroyed, running], [0, 0, 0])
})

test('a sandbox that is paused, resumed, resized and deleted is counted as it was charged', async () => {
  const owner = await user()
  const startMs = await databaseTime()
  const { id, disk_mib } = (await create(owner, { shape: 's-0.5vcpu-1gb' })).body.data
  await advance(100)
  await move(owner, id, 'pause', 'paused')
  await advance(1000)
  await move(owner, id, 'resume', 'running')
  await advance(10)
  await sql`update sandboxes set disk_mib = disk_mib * 2 where id = ${id}`.execute(deps.db)
  await advance(1)
  const whileRunning = await metricsOf(owner, startMs, startMs + HOUR_MS)
  await send('DELETE', `/v1/sandboxes/${id}`, owner)
  await waitForStatus(owner, id, 'destroyed')
  await advance(5000)

  const { current, window } = await metricsOf(owner, startMs, startMs + DAY_MS)

  assert.deepEqual(current, { ...NONE, destroyed: 1 })
  assert.deepEqual([window.spawned, window.destroyed], [1, 1])
  assert.deepEqual(window.lifetime_seconds, { min: 1111, p50: 1111, p95: 1111, average: 1111 })
  assert.deepEqual(window.compute, {
    vcpu_seconds: 0.5 * 111,
    mem_mib_seconds: 1024 * 1111,
    disk_mib_seconds: disk_mib * 1110 + 2 * disk_mib,
  })
  assert.deepEqual(window.by_shape, [{ shape: 's-0.5vcpu-1gb', count: 1, vcpu_seconds: 55.5 }])
  assert.deepEqual(whileRunning.window.compute, window.compute)
  assert.deepEqual(whileRunning.current, { ...NONE, running: 1 })
  assert.equal(whileRunning.window.destroyed, 0)
})

test('only the part of an interval that is inside the window is counted, and nothing after now', async () => {
  const owner = await user()
  const startMs = await databaseTime()
  await create(owner, { shape: 's-1vcpu-256mb' })
  await advance(600)
  const nowMs = await databaseTime()
  const vcpuSeconds = async (fromMs: number, toMs: number) =>
    (await metricsOf(owner, fromMs, toMs)).window.compute.vcpu_seconds

  assert.equal(await vcpuSeconds(startMs + 100_000, startMs + 150_000), 50)
  assert.equal(await vcpuSeconds(startMs - 100_000, startMs + 50_000), 50)
  assert.equal(await vcpuSeconds(startMs + 590_000, nowMs + DAY_MS), 10)
  assert.equal(await vcpuSeconds(startMs - DAY_MS, startMs), 0)
  const before = await metricsOf(owner, startMs - DAY_MS, startMs)
  assert.deepEqual(before.window, { from: at(startMs - DAY_MS), to: at(startMs), ...NOTHING })
  assert.equal(before.current.running, 1)
})

test('forks are counted like creates, from when they exist', async () => {
  const owner = await user()
  const startMs = await databaseTime()
  const { id } = (await create(owner)).body.data
  await move(owner, id, 'pause', 'paused')
  await advance(60)
  const fork = async (body: object) => {
    const { body: answer } = await send('POST', `/v1/sandboxes/${id}/fork`, owner, body)
    return answer.data.id
  }
  await waitForStatus(owner, await fork({}), 'running')
  await waitForStatus(owner, await fork({ start_paused: true }), 'paused')
  await advance(60)

  const { current, window } = await metricsOf(owner, startMs, startMs + HOUR_MS)

  assert.deepEqual(current, { ...NONE, running: 1, paused: 2 })
  assert.equal(window.spawned, 3)
  assert.deepEqual(window.by_shape, [{ shape: 's-1vcpu-256mb', count: 3, vcpu_seconds: 60 }])
  assert.equal(window.compute.mem_mib_seconds, 256 * (120 + 60 + 60))
})

test('a create that failed is not counted, even after it was deleted', async () => {
  const owner = await user()
  const startMs = await databaseTime()
  await insertSandbox(deps.db, owner.id, 'failed')
  await insertSandbox(deps.db, owner.id, 'destroyed', { destroyed_at: new Date(startMs) })
  await advance(1)

  const { current, window } = await metricsOf(owner, startMs, startMs + HOUR_MS)

  assert.deepEqual(current, { ...NONE, failed: 1, destroyed: 1 })
  assert.deepEqual([window.spawned, window.destroyed], [0, 0])
})

test('sandboxes of another user are not counted', async () => {
  const [owner, other] = [await user(), await user()]
  const startMs = await databaseTime()
  const { id } = (await create(other)).body.data
  await recordCounts(deps.db, [{ id, used_bytes: 7, ingress_bytes: 8 }])
  await advance(60)

  const { current, window } = await metricsOf(owner, startMs, startMs + HOUR_MS)

  assert.deepEqual(current, NONE)
  assert.deepEqual(window, { from: at(startMs), to: at(startMs + HOUR_MS), ...NOTHING })
})

test('the bytes of all hours of a sandbox are its totals, through pauses, old reports and simultaneous ones', async () => {
  const owner = await user()
  const startMs = await databaseTime()
  const { id } = (await create(owner)).body.data
  const network = () => host.vms.get(id)!.network
  const bandwidth = async () => (await get(`/v1/sandboxes/${id}/bandwidth`, owner.key)).body.data

  network().send(1000)
  await bandwidth()
  await advance(7200)
  network().receive(500)
  await move(owner, id, 'pause', 'paused')
  await move(owner, id, 'resume', 'running')
  network().send(30)
  const report = { id, used_bytes: 1030, ingress_bytes: 500 }
  await Promise.all([
    recordCounts(deps.db, [report]),
    recordCounts(deps.db, [report]),
    recordCounts(deps.db, [{ ...report, used_bytes: 1010 }]),
    bandwidth(),
  ])
  await advance(1)

  const { window } = await metricsOf(owner, startMs, startMs + DAY_MS)
  assert.deepEqual(window.bandwidth_bytes, { egress: 1030, ingress: 500 })
  const first = await metricsOf(owner, startMs, startMs + HOUR_MS)
  assert.deepEqual(first.window.bandwidth_bytes, { egress: 1000, ingress: 0 })
  const second = await metricsOf(owner, startMs + HOUR_MS, startMs + DAY_MS)
  assert.deepEqual(second.window.bandwidth_bytes, { egress: 30, ingress: 500 })
})

test('each bucket begins at a full hour or day, and has what is running at its end', async () => {
  const owner = await user()
  await advance(86_400 - (((await databaseTime()) / 1000) % 86_400)) // To the next full day.
  const dayMs = await databaseTime()
  await advance(1800)
  const { id: short } = (await create(owner)).body.data
  const { id: long } = (await create(owner)).body.data
  await advance(600)
  await send('DELETE', `/v1/sandboxes/${short}`, owner)
  await waitForStatus(owner, short, 'destroyed')
  await advance(5000)
  await move(owner, long, 'pause', 'paused')
  await advance(4000)
  const nowMs = await databaseTime()

  const hours = await seriesOf(owner, dayMs + 60_000, dayMs + DAY_MS)

  assert.deepEqual(hours, {
    from: at(dayMs + 60_000),
    to: at(dayMs + DAY_MS),
    bucket: 'hour',
    buckets: [
      { ts: at(dayMs), spawned: 2, destroyed: 1, running: 1 },
      { ts: at(dayMs + HOUR_MS), spawned: 0, destroyed: 0, running: 1 },
      { ts: at(dayMs + 2 * HOUR_MS), spawned: 0, destroyed: 0, running: 0 },
      { ts: at(dayMs + 3 * HOUR_MS), spawned: 0, destroyed: 0, running: 0 },
    ].slice(0, Math.ceil((nowMs - dayMs) / HOUR_MS)),
  })
  const days = await seriesOf(owner, dayMs - DAY_MS, dayMs + HOUR_MS, 'day')
  assert.deepEqual(days.buckets, [
    { ts: at(dayMs - DAY_MS), spawned: 0, destroyed: 0, running: 0 },
    { ts: at(dayMs), spawned: 2, destroyed: 1, running: 1 },
  ])
})

test('a window without length, or in the future, is empty', async () => {
  const owner = await user()
  await create(owner)
  const nowMs = await databaseTime()

  for (const [fromMs, toMs] of [
    [nowMs, nowMs],
    [nowMs + HOUR_MS, nowMs + DAY_MS],
  ] as const) {
    const { window } = await metricsOf(owner, fromMs, toMs)
    assert.deepEqual(window, { from: at(fromMs), to: at(toMs), ...NOTHING })
    assert.deepEqual((await seriesOf(owner, fromMs, toMs)).buckets, [])
  }
})

test('without parameters the window is the last day, and that of the series the last seven days in hours', async () => {
  const owner = await user()

  const { window } = (await get('/v1/metrics', owner.key)).body.data
  const series = (await get('/v1/metrics/timeseries', owner.key)).body.data

  assert.equal(Date.parse(window.to) - Date.parse(window.from), DAY_MS)
  assert.equal(Date.parse(series.to) - Date.parse(series.from), 7 * DAY_MS)
  assert.ok(Math.abs(Date.parse(window.to) - Date.now()) < 60_000)
  assert.equal(series.bucket, 'hour')
  assert.ok(series.buckets.length === 7 * 24 || series.buckets.length === 7 * 24 + 1)
})

test('an invalid, inverted or too long window is 400 with the name of the field', async () => {
  const owner = await user()
  const refused = [
    ['from=yesterday', 'from'],
    ['from=1774958400', 'from'],
    ['from=2026-03-31', 'from'],
    ['to=2026-13-01T00:00:00Z', 'to'],
    ['to=2026-03-31T12:00:00', 'to'],
    ["to=2026-03-31T12:00:00Z'%20or%20true--", 'to'],
    ['from=2026-03-31T12:00:01Z&to=2026-03-31T12:00:00Z', 'from'],
    ['from=2026-03-01T00:00:00Z&to=2026-03-31T00:00:00.001Z', 'from'],
    // `from` is then the default, which is after it.
    ['to=2020-01-01T00:00:00Z', 'from'],
    ['from=9999-01-01T00:00:00Z', 'from'],
  ] as const

  for (const path of ['/v1/metrics', '/v1/metrics/timeseries']) {
    for (const [query, field] of refused) {
      const { status, body } = await get(`${path}?${query}`, owner.key)
      assert.deepEqual([status, body.status, Object.keys(body.data)[0]], [400, 'fail', field], `${path}?${query}`)
    }
    assert.equal((await get(`${path}?from=2026-03-01T00:00:00Z&to=2026-03-31T00:00:00Z`, owner.key)).status, 200)
    assert.equal((await get(path)).status, 401)
  }
  const { status, body } = await get('/v1/metrics/timeseries?bucket=week', owner.key)
  assert.deepEqual([status, Object.keys(body.data)[0]], [400, 'bucket'])
})

test('windows at both ends of the calendar are answered', async () => {
  const owner = await user()

  for (const path of ['/v1/metrics', '/v1/metrics/timeseries']) {
    for (const [from, to] of [
      ['0000-01-01T00:00:00.000Z', '0000-01-02T00:00:00.000Z'],
      ['0001-01-01T00:00:00.000Z', '0001-01-02T00:00:00.000Z'],
      ['9999-12-30T00:00:00.000Z', '9999-12-31T23:59:59.999Z'],
    ] as const) {
      const { status, body } = await get(`${path}?from=${from}&to=${to}`, owner.key)
      assert.equal(status, 200, from)
      const window = body.data.window ?? body.data
      assert.deepEqual([window.from, window.to], [from, to])
    }
  }
})

test('the classes of lengths are the same in the database and in the query', async () => {
  const owner = await user()
  const { id } = await insertSandbox(deps.db, owner.id)
  const { rows } = await sql<{ length_class: number }>`insert into usage_intervals
      (sandbox_id, user_id, kind, shape, cpu_pct, mem_mib, disk_mib, billable, charged_until, started_at, ended_at)
    select ${id}, ${owner.id}, 'running', 's-1vcpu-1gb', 100, 1024, 10240, false, now(), now(),
      now() + make_interval(secs => bound) - less * interval '1 microsecond'
    from unnest(${LENGTH_CLASS_SECONDS}::float8[]) bound, (values (1), (0)) given (less) order by bound, less desc
    returning length_class`.execute(deps.db)

  assert.deepEqual(
    rows.map((row) => row.length_class),
    LENGTH_CLASS_SECONDS.flatMap((_, n) => [n, n + 1]),
  )
})

test('an access token cannot read the metrics of its account', async () => {
  const owner = await user()
  const { id } = (await create(owner)).body.data
  const { token } = (await send('POST', `/v1/sandboxes/${id}/access-token`, owner)).body.data

  for (const path of ['/v1/metrics', '/v1/metrics/timeseries']) assert.equal((await get(path, token)).status, 403, path)
})

test(`bytes per hour are deleted after ${BANDWIDTH_HOURS_RETENTION_DAYS} days, the totals are not`, async () => {
  const owner = await user()
  const { id } = (await create(owner)).body.data
  const hours = async () =>
    (await deps.db.selectFrom('bandwidth_hours').select('egress_bytes').where('sandbox_id', '=', id).execute()).map(
      (row) => row.egress_bytes,
    )
  await recordCounts(deps.db, [{ id, used_bytes: 5, ingress_bytes: 0 }])
  await advance((BANDWIDTH_HOURS_RETENTION_DAYS - 1) * 86_400)
  await recordCounts(deps.db, [{ id, used_bytes: 7, ingress_bytes: 0 }])
  await deleteOldBandwidthHours.run(deps)
  assert.deepEqual((await hours()).sort(), [2, 5])

  await advance(2 * 86_400)
  await deleteOldBandwidthHours.run(deps)

  assert.deepEqual(await hours(), [2])
  assert.equal((await get(`/v1/sandboxes/${id}/bandwidth`, owner.key)).body.data.used_bytes, 7)
})
