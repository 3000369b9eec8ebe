/**
 * Account metrics against a model: random histories of sandboxes, and random windows. The model looks at every sandbox in every
 * minute of the window. Times are whole minutes and often full hours, so edges of windows, buckets and intervals coincide.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { findShape, newId, type UserMetricsView } from '@warren/protocol'
import fc from 'fast-check'
import { recordCounts } from '../bandwidth/record-counts.ts'
import type { UsageKind } from '../db/schema.ts'
import { createTestApp } from '../testing/app.ts'
import { createDatabaseWithTestClock, setDatabaseTime } from '../testing/database-with-clock.ts'
import { insertSandbox } from '../testing/sandboxes.ts'

const RUNS = Number(process.env.WARREN_PROPERTY_RUNS ?? 60)
const MINUTE_MS = 60_000
const HOUR = 60
const DAY = 24 * HOUR
/** A full day, as the minute 0. All histories end here. */
const NOW_MS = Date.parse('2027-03-31T00:00:00Z')

const SHAPES = ['s-0.25vcpu-512mb', 's-1vcpu-1gb', 's-2vcpu-4gb'] as const
/** `nothing` is a status that uses nothing, such as destroying. */
type State = UsageKind | 'nothing'

type Step = { state: State; diskMib: number; minutes: number }
type History = {
  shape: (typeof SHAPES)[number]
  /** Minutes from its creation to now. */
  age: number
  /** A create that failed has no steps and was never up. */
  steps: Step[]
  /** Whether it was deleted after its steps, if these ended before now. */
  deleted: boolean
  traffic: { minute: number; egress: number; ingress: number }[]
}
type Window = { from: number; to: number }

const database = await createDatabaseWithTestClock()
const { deps, user, get } = await createTestApp({ database })

const minutes = fc.oneof(
  fc.integer({ min: 0, max: 5 }),
  fc.integer({ min: 0, max: 3 * HOUR }),
  fc.integer({ min: 1, max: 72 }).map((hours) => hours * HOUR),
  fc.integer({ min: 0, max: 70 * DAY }),
  fc.integer({ min: 0, max: 800 * DAY }),
)
const step = fc.record({
  state: fc.constantFrom<State>('running', 'running', 'paused', 'error', 'nothing'),
  diskMib: fc.constantFrom(10_240, 20_480, 61_440),
  minutes,
})
const bytes = fc.oneof(fc.integer({ min: 0, max: 9 }), fc.integer({ min: 0, max: 2 ** 40 }))
const history: fc.Arbitrary<History> = fc.record({
  shape: fc.constantFrom(...SHAPES),
  age: minutes.filter((age) => age > 0),
  steps: fc.array(step, { maxLength: 5 }),
  deleted: fc.boolean(),
  traffic: fc.array(fc.record({ minute: fc.integer({ min: -50 * HOUR, max: 0 }), egress: bytes, ingress: bytes }), {
    maxLength: 6,
  }),
})
const window: fc.Arbitrary<Window> = fc
  .tuple(
    fc.oneof(
      fc.integer({ min: -40 * DAY, max: 2 * HOUR }),
      fc.integer({ min: -48, max: 2 }).map((n) => n * HOUR),
    ),
    fc.oneof(
      fc.integer({ min: 0, max: 3 * HOUR }),
      fc.integer({ min: 0, max: 48 }).map((n) => n * HOUR),
    ),
    fc.constantFrom(1, 1, 1, 15),
  )
  .map(([from, span, factor]) => ({ from, to: from + span * factor }))

test(`metrics and series are what the model says (${RUNS} histories)`, async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(history, { maxLength: 8 }),
      fc.array(window, { minLength: 4, maxLength: 4 }),
      async (histories, windows) => {
        const owner = await user()
        await write(owner.id, histories)

        for (const one of windows) {
          const query = `from=${render(one.from)}&to=${render(one.to)}`
          const metrics = await get(`/v1/metrics?${query}`, owner.key)
          assert.deepEqual(rounded(metrics.body.data.window), rounded(modelWindow(histories, one)))
          for (const [bucket, length] of [
            ['hour', HOUR],
            ['day', DAY],
          ] as const) {
            const series = await get(`/v1/metrics/timeseries?bucket=${bucket}&${query}`, owner.key)
            assert.deepEqual(series.body.data.buckets, modelBuckets(histories, one, length), bucket)
          }
        }
      },
    ),
    { numRuns: RUNS, endOnFailure: true },
  )
})

test('adjacent windows add up to the one that they cover', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(history, { minLength: 1, maxLength: 6 }),
      window,
      fc.double({ min: 0, max: 1, noNaN: true }),
      async (histories, { from, to }, share) => {
        const owner = await user()
        await write(owner.id, histories)
        // Not a whole minute, so that bytes of an hour are divided.
        const middle = Math.floor((from + (to - from) * share) * 1000) / 1000

        const [whole, first, second] = await Promise.all(
          [
            [from, to],
            [from, middle],
            [middle, to],
          ].map(async ([start, end]) => {
            const { body } = await get(`/v1/metrics?from=${render(start!)}&to=${render(end!)}`, owner.key)
            return additive(body.data.window)
          }),
        )

        assert.deepEqual(
          first!.map((value, n) => Math.round((value + second![n]!) * 1000)),
          whole!.map((value) => Math.round(value * 1000)),
        )
      },
    ),
    { numRuns: Math.ceil(RUNS / 2), endOnFailure: true },
  )
})

const additive = ({ spawned, destroyed, compute, bandwidth_bytes }: UserMetricsView['window']): number[] => [
  spawned,
  destroyed,
  ...Object.values(compute),
  bandwidth_bytes.egress,
  bandwidth_bytes.ingress,
]

const timeOf = (minute: number): Date => new Date(NOW_MS + Math.round(minute * MINUTE_MS))
const render = (minute: number): string => timeOf(minute).toISOString()

async function write(userId: string, histories: History[]): Promise<void> {
  await setDatabaseTime(deps.db, NOW_MS)
  const totals = new Map<string, { used_bytes: number; ingress_bytes: number }>()
  const traffic: (History['traffic'][number] & { id: string })[] = []
  for (const one of histories) {
    const id = await writeSandbox(userId, one)
    totals.set(id, { used_bytes: 0, ingress_bytes: 0 })
    traffic.push(...one.traffic.map((sent) => ({ id, ...sent })))
  }
  for (const { id, minute, egress, ingress } of traffic.sort((a, b) => a.minute - b.minute)) {
    const total = totals.get(id)!
    total.used_bytes += egress
    total.ingress_bytes += ingress
    await setDatabaseTime(deps.db, NOW_MS + minute * MINUTE_MS)
    await recordCounts(deps.db, [{ id, ...total }])
  }
  await setDatabaseTime(deps.db, NOW_MS)
}

async function writeSandbox(userId: string, one: History): Promise<string> {
  const { mem_mib, cpu_quota_pct } = findShape(one.shape)!
  const destroyed = destroyedAt(one)
  const began = (state: State) => {
    const first = intervalsOf(one).find((interval) => interval.state === state)
    return first ? timeOf(first.from) : null
  }
  const { id } = await insertSandbox(deps.db, userId, destroyed === undefined ? 'running' : 'destroyed', {
    id: newId('sandbox'),
    shape: one.shape,
    created_at: timeOf(-one.age),
    running_at: began('running'),
    paused_at: began('paused'),
    destroyed_at: destroyed === undefined ? null : timeOf(destroyed),
  })
  for (const { state, diskMib, from, to } of intervalsOf(one)) {
    if (state === 'nothing') continue
    await deps.db
      .insertInto('usage_intervals')
      .values({
        sandbox_id: id,
        user_id: userId,
        kind: state,
        shape: one.shape,
        cpu_pct: cpu_quota_pct,
        mem_mib,
        disk_mib: diskMib,
        billable: true,
        started_at: timeOf(from),
        ended_at: to === undefined ? null : timeOf(to),
        charged_until: timeOf(from),
      })
      .execute()
  }
  return id
}

type Interval = { state: State; diskMib: number; from: number; to: number | undefined }

/** The steps with their times, up to now. Only the last one has no end, unless the sandbox was deleted after it. */
function intervalsOf({ age, steps, deleted }: History): Interval[] {
  const intervals: Interval[] = []
  let at = -age
  for (const { state, diskMib, minutes: length } of steps) {
    if (at >= 0) break
    intervals.push({ state, diskMib, from: at, to: at + length < 0 ? at + length : undefined })
    at += length
  }
  const last = intervals.at(-1)
  if (last?.to !== undefined && !deleted) last.to = undefined
  return intervals
}

/** A deleted sandbox is destroyed at the end of its last step. */
function destroyedAt(one: History): number | undefined {
  if (!one.deleted) return undefined
  const last = intervalsOf(one).at(-1)
  return last ? last.to : -one.age
}

const lived = (one: History): boolean => intervalsOf(one).some(({ state }) => state === 'running' || state === 'paused')

const stateAt = (intervals: Interval[], minute: number): Interval | undefined =>
  intervals.find(({ from, to }) => from <= minute && (to === undefined || minute < to))

function modelWindow(histories: History[], { from, to }: Window): UserMetricsView['window'] {
  const inside = (minute: number | undefined) => minute !== undefined && minute >= from && minute < to
  const successful = histories.filter(lived)
  const gone = successful.filter((one) => inside(destroyedAt(one)))
  const lifetimes = gone.map((one) => (destroyedAt(one)! + one.age) * 60).sort((a, b) => a - b)
  const compute = { vcpu_seconds: 0, mem_mib_seconds: 0, disk_mib_seconds: 0 }
  const shapes = new Map<string, { shape: string; count: number; vcpu_seconds: number }>()
  for (const one of histories) {
    const { mem_mib, cpu_quota_pct } = findShape(one.shape)!
    const intervals = intervalsOf(one)
    let [vcpu, used] = [0, false]
    for (let minute = from; minute < Math.min(to, 0); minute++) {
      const now = stateAt(intervals, minute)
      if (!now || now.state === 'nothing') continue
      used = true
      if (now.state === 'running') vcpu += cpu_quota_pct * 0.6
      if (now.state !== 'error') compute.mem_mib_seconds += mem_mib * 60
      compute.disk_mib_seconds += now.diskMib * 60
    }
    if (!used) continue
    compute.vcpu_seconds += vcpu
    const shape = shapes.get(one.shape) ?? { shape: one.shape, count: 0, vcpu_seconds: 0 }
    shapes.set(one.shape, { ...shape, count: shape.count + 1, vcpu_seconds: shape.vcpu_seconds + vcpu })
  }
  const sent = histories.flatMap((one) => bytesOf(one, { from, to }))
  return {
    from: render(from),
    to: render(to),
    spawned: successful.filter((one) => inside(-one.age)).length,
    destroyed: gone.length,
    lifetime_seconds: {
      min: lifetimes[0] ?? 0,
      p50: percentile(lifetimes, 0.5),
      p95: percentile(lifetimes, 0.95),
      average: lifetimes.reduce((sum, one) => sum + one, 0) / (lifetimes.length || 1),
    },
    compute,
    bandwidth_bytes: {
      egress: sent.reduce((sum, one) => sum + one.egress, 0),
      ingress: sent.reduce((sum, one) => sum + one.ingress, 0),
    },
    by_shape: [...shapes.values()].sort(
      (a, b) => Math.round((b.vcpu_seconds - a.vcpu_seconds) * 1000) || (a.shape < b.shape ? -1 : 1),
    ),
  }
}

/** Between the two nearest values. */
function percentile(sorted: number[], share: number): number {
  if (sorted.length === 0) return 0
  const place = share * (sorted.length - 1)
  const [low, high] = [sorted[Math.floor(place)]!, sorted[Math.ceil(place)]!]
  return low + (high - low) * (place - Math.floor(place))
}

/** The bytes of each hour, spread over the minutes from the first to the last record that added some. */
function bytesOf(one: History, { from, to }: Window): { egress: number; ingress: number }[] {
  const added = one.traffic.filter(({ egress, ingress }) => egress > 0 || ingress > 0)
  const hours = Map.groupBy(added, ({ minute }) => Math.floor(minute / HOUR))
  return [...hours.values()].map((records) => {
    const times = records.map(({ minute }) => minute)
    const [first, last] = [Math.min(...times), Math.max(...times)]
    const before = (total: number, at: number) => {
      if (at <= first) return 0
      if (at >= last) return total
      return Number((BigInt(total) * BigInt(at - first)) / BigInt(last - first))
    }
    const within = (total: number) => before(total, to) - before(total, from)
    return {
      egress: within(records.reduce((sum, { egress }) => sum + egress, 0)),
      ingress: within(records.reduce((sum, { ingress }) => sum + ingress, 0)),
    }
  })
}

function modelBuckets(histories: History[], { from, to }: Window, length: number) {
  const buckets: { ts: string; spawned: number; destroyed: number; running: number }[] = []
  const until = Math.min(to, 0)
  if (from >= until) return buckets
  for (let start = Math.floor(from / length) * length; start < until; start += length) {
    const end = Math.min(start + length, until)
    const inside = (minute: number | undefined) =>
      minute !== undefined && minute >= Math.max(start, from) && minute < end
    const successful = histories.filter(lived)
    buckets.push({
      ts: render(start),
      spawned: successful.filter((one) => inside(-one.age)).length,
      destroyed: successful.filter((one) => inside(destroyedAt(one))).length,
      running: histories.filter((one) => stateAt(intervalsOf(one), end)?.state === 'running').length,
    })
  }
  return buckets
}

/** The model adds floating-point numbers. */
const rounded = (value: unknown): unknown =>
  JSON.parse(JSON.stringify(value), (_, one) => (typeof one === 'number' ? Math.round(one * 1000) / 1000 : one))
