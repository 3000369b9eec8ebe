/** Resource usage of one sandbox and of all sandboxes of a user. */
import { type Static, Type } from 'typebox'
import { SandboxId, Timestamp } from './ids.ts'
import { SandboxStatus } from './sandbox.ts'

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS

export const METRICS_STEP_SECONDS = 10
export const METRICS_WINDOW_SECONDS = 3_600
export const METRICS_SPAN_MAX_MS = 30 * DAY_MS
export const METRICS_SPAN_DEFAULT_MS = DAY_MS
export const METRICS_SERIES_SPAN_DEFAULT_MS = 7 * DAY_MS
/** Two of the longest windows, to compare a month with the one before. */
export const BANDWIDTH_HOURS_RETENTION_DAYS = 62

/** All values are 0 while the sandbox is paused. */
export const MetricsView = Type.Object({
  sandbox_id: SandboxId,
  memory_bytes: Type.Integer(),
  memory_limit_bytes: Type.Integer({ description: '0 for no limit.' }),
  memory_pct: Type.Number(),
  cpu_cores_used: Type.Number({ description: 'Average of the last 15 to 30 seconds.' }),
  cpu_cores_allocated: Type.Number({ description: '0 for no limit.' }),
  cpu_pct: Type.Number(),
  as_of: Timestamp,
})
export type MetricsView = Static<typeof MetricsView>

export const MetricsPoint = Type.Object({
  ts: Timestamp,
  cpu_cores_used: Type.Number(),
  cpu_per_core: Type.Optional(Type.Array(Type.Number())),
  memory_bytes: Type.Integer({ description: 'Memory used as measured on the host.' }),
  memory_used_guest_bytes: Type.Integer({ description: 'Memory used as measured in the guest.' }),
  memory_limit_bytes: Type.Integer(),
  net_bytes_in_per_sec: Type.Number(),
  net_bytes_out_per_sec: Type.Number(),
  storage_bytes: Type.Integer(),
  storage_limit_bytes: Type.Integer(),
})
export type MetricsPoint = Static<typeof MetricsPoint>

export const MetricsSeriesView = Type.Object({
  sandbox_id: SandboxId,
  step_seconds: Type.Integer(),
  window_seconds: Type.Integer(),
  points: Type.Array(MetricsPoint, { description: 'Oldest first.' }),
})
export type MetricsSeriesView = Static<typeof MetricsSeriesView>

const From = Type.Optional(Type.String({ description: 'Start of the window, RFC 3339. At most 30 days before `to`.' }))
const To = Type.Optional(Type.String({ description: 'End of the window, RFC 3339. Defaults to now.' }))

export const UserMetricsQuery = Type.Object({ from: From, to: To })
export type UserMetricsQuery = Static<typeof UserMetricsQuery>

export const UserMetricsView = Type.Object({
  current: Type.Partial(Type.Record(SandboxStatus, Type.Integer()), { description: 'Sandboxes by status, now.' }),
  window: Type.Object({
    from: Timestamp,
    to: Timestamp,
    spawned: Type.Integer({ description: 'Sandboxes created in the window, including forks.' }),
    destroyed: Type.Integer({ description: 'Sandboxes deleted in the window.' }),
    lifetime_seconds: Type.Object(
      {
        min: Type.Number(),
        p50: Type.Number(),
        p95: Type.Number(),
        average: Type.Number(),
      },
      { description: 'Of the sandboxes deleted in the window; 0 if there are none.' },
    ),
    compute: Type.Object(
      {
        vcpu_seconds: Type.Number({ description: 'Of running sandboxes.' }),
        mem_mib_seconds: Type.Number({ description: 'Of running and paused sandboxes.' }),
        disk_mib_seconds: Type.Number({ description: 'Of all sandboxes that are not deleted.' }),
      },
      { description: 'What is charged in the window.' },
    ),
    bandwidth_bytes: Type.Object(
      { egress: Type.Integer(), ingress: Type.Integer() },
      { description: 'Counted per hour. The share of an hour that is partly in the window is estimated.' },
    ),
    by_shape: Type.Array(Type.Object({ shape: Type.String(), count: Type.Integer(), vcpu_seconds: Type.Number() }), {
      description: 'Sandboxes that used anything in the window, and their vCPU seconds, by shape.',
    }),
  }),
})
export type UserMetricsView = Static<typeof UserMetricsView>

export const METRICS_BUCKET_MS = { hour: HOUR_MS, day: DAY_MS } as const
export type MetricsBucket = keyof typeof METRICS_BUCKET_MS
const Bucket = Type.Enum(['hour', 'day'] as const satisfies MetricsBucket[])

export const UserMetricsSeriesQuery = Type.Object({ bucket: Type.Optional(Bucket), from: From, to: To })
export type UserMetricsSeriesQuery = Static<typeof UserMetricsSeriesQuery>

export const UserMetricsSeriesView = Type.Object({
  from: Timestamp,
  to: Timestamp,
  bucket: Bucket,
  buckets: Type.Array(
    Type.Object({
      ts: Timestamp,
      spawned: Type.Integer(),
      destroyed: Type.Integer(),
      running: Type.Integer({ description: 'Sandboxes running at the end of the bucket, or now.' }),
    }),
    { description: 'Oldest first, all of them, up to now.' },
  ),
})
export type UserMetricsSeriesView = Static<typeof UserMetricsSeriesView>

export type MetricsWindow = { fromMs: number; toMs: number }

/** The requested window, or the invalid field and its error. Each end has its own default. */
export function parseMetricsWindow(
  query: UserMetricsQuery,
  defaultSpanMs: number,
  nowMs: number,
): MetricsWindow | { field: 'from' | 'to'; text: string } {
  const fromMs = query.from ? parseRfc3339(query.from) : nowMs - defaultSpanMs
  if (Number.isNaN(fromMs)) return { field: 'from', text: 'must be an RFC 3339 time' }
  const toMs = query.to ? parseRfc3339(query.to) : nowMs
  if (Number.isNaN(toMs)) return { field: 'to', text: 'must be an RFC 3339 time' }
  if (fromMs > toMs) return { field: 'from', text: 'must not be after to' }
  if (toMs - fromMs > METRICS_SPAN_MAX_MS) return { field: 'from', text: 'must be at most 30 days before to' }
  return { fromMs, toMs }
}

/** NaN for the other formats that Date.parse accepts. */
const parseRfc3339 = (text: string): number =>
  /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})$/i.test(text) ? Date.parse(text.toUpperCase()) : NaN
