import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Value } from 'typebox/value'
import { METRICS_SPAN_DEFAULT_MS, parseMetricsWindow, UserMetricsSeriesQuery, UserMetricsView } from './metrics.ts'

const NOW_MS = Date.parse('2026-03-31T12:00:00Z')
const DAY_MS = 86_400_000
const parse = (query: { from?: string; to?: string }) => parseMetricsWindow(query, METRICS_SPAN_DEFAULT_MS, NOW_MS)

test('the default window is the last day', () => {
  assert.deepEqual(parse({}), { fromMs: NOW_MS - DAY_MS, toMs: NOW_MS })
})

test('a time can have an offset and a fraction', () => {
  assert.deepEqual(parse({ from: '2026-03-31T12:00:00+02:00', to: '2026-03-31t11:00:00.25z' }), {
    fromMs: NOW_MS - 2 * 3_600_000,
    toMs: NOW_MS - 3_600_000 + 250,
  })
})

test('an invalid time is refused with the name of its field', () => {
  for (const bad of ['yesterday', '2026-03-31', '1774958400', '2026-13-01T00:00:00Z', '2026-03-31T12:00:00']) {
    assert.deepEqual(parse({ from: bad }), { field: 'from', text: 'must be an RFC 3339 time' }, bad)
    assert.deepEqual(parse({ to: bad }), { field: 'to', text: 'must be an RFC 3339 time' }, bad)
  }
})

test('a window can be empty, but not negative or longer than 30 days', () => {
  const at = (ms: number) => new Date(ms).toISOString()

  assert.deepEqual(parse({ from: at(NOW_MS) }), { fromMs: NOW_MS, toMs: NOW_MS })
  assert.deepEqual(parse({ from: at(NOW_MS - 30 * DAY_MS) }), { fromMs: NOW_MS - 30 * DAY_MS, toMs: NOW_MS })
  assert.deepEqual(parse({ from: at(NOW_MS + 1) }), { field: 'from', text: 'must not be after to' })
  assert.deepEqual(parse({ from: at(NOW_MS - 30 * DAY_MS - 1) }), {
    field: 'from',
    text: 'must be at most 30 days before to',
  })
})

test('buckets of a series are hours or days', () => {
  assert.ok(Value.Check(UserMetricsSeriesQuery, { bucket: 'day' }))
  assert.ok(!Value.Check(UserMetricsSeriesQuery, { bucket: 'week' }))
})

test('counts can omit statuses, and durations can be fractions', () => {
  const window = {
    from: '2026-03-30T12:00:00.000Z',
    to: '2026-03-31T12:00:00.000Z',
    spawned: 2,
    destroyed: 1,
    lifetime_seconds: { min: 1.5, p50: 1.5, p95: 1.5, average: 1.5 },
    compute: { vcpu_seconds: 0.25, mem_mib_seconds: 0, disk_mib_seconds: 0 },
    bandwidth_bytes: { egress: 1, ingress: 2 },
    by_shape: [{ shape: 's-1vcpu-1gb', count: 2, vcpu_seconds: 0.25 }],
  }

  assert.ok(Value.Check(UserMetricsView, { current: { running: 1 }, window }))
  assert.ok(!Value.Check(UserMetricsView, { current: { running: 0.5 }, window }))
})
