/**
 * What all sandboxes of a user are now, and what they were and used in a window. docs/api.md#account-metrics defines each
 * value. One statement, so that all values are of the same moment.
 *
 * A window includes its start and excludes its end, so adjacent windows add up. Nothing is counted after now.
 */
import {
  METRICS_SPAN_DEFAULT_MS,
  SANDBOX_STATUSES,
  type SandboxStatus,
  type UserMetricsQuery,
  type UserMetricsView,
} from '@warren/protocol'
import { type RawBuilder, sql } from 'kysely'
import type { Deps } from '../deps.ts'
import { overlappingIntervals } from './overlapping-intervals.ts'
import { getWindow } from './window.ts'

type Row = {
  current: Partial<Record<SandboxStatus, number>> | null
  spawned: number
  destroyed: number
  lifetime: UserMetricsView['window']['lifetime_seconds']
  egress: number
  ingress: number
  vcpu_seconds: number
  mem_mib_seconds: number
  disk_mib_seconds: number
  by_shape: UserMetricsView['window']['by_shape']
}

export async function getAccountMetrics(deps: Deps, userId: string, query: UserMetricsQuery): Promise<UserMetricsView> {
  const { from, to } = getWindow(deps, query, METRICS_SPAN_DEFAULT_MS)
  const { rows } = await accountMetrics(userId, from, to).execute(deps.db)
  const row = rows[0]! // It has no table whose rows could be missing.
  return {
    current: Object.fromEntries(SANDBOX_STATUSES.map((status) => [status, row.current?.[status] ?? 0])),
    window: {
      from: from.toISOString(),
      to: to.toISOString(),
      spawned: row.spawned,
      destroyed: row.destroyed,
      lifetime_seconds: row.lifetime,
      compute: {
        vcpu_seconds: row.vcpu_seconds,
        mem_mib_seconds: row.mem_mib_seconds,
        disk_mib_seconds: row.disk_mib_seconds,
      },
      bandwidth_bytes: { egress: row.egress, ingress: row.ingress },
      by_shape: row.by_shape,
    },
  }
}

/** A create that failed, or was deleted before it was done, is not counted. */
export const LIVED = sql`(running_at is not null or paused_at is not null)`

/**
 * Memory and disk are used by the same intervals for which they are charged (credit/price.ts). `offset 0` makes PostgreSQL
 * compute the length of an interval once, not once for each of its uses.
 */
export const accountMetrics = (userId: string, from: Date, to: Date): RawBuilder<Row> => sql<Row>`
  with used as (
    select i.shape, i.sandbox_id,
      case when i.kind = 'running' then i.cpu_pct * i.us else 0 end as cpu_pct_us,
      case when i.kind in ('running', 'paused') then i.mem_mib * i.us else 0 end as mem_mib_us,
      i.disk_mib * i.us as disk_mib_us
    from (
      select clipped.*, (extract(epoch from until - since) * 1000000)::bigint as us
      from (
        select overlapping.*, greatest(started_at, ${from}) as since, least(ended_at, ${to}, now()) as until
        from (${overlappingIntervals(userId, from, to)}) overlapping) clipped
      where until > since offset 0) i),
  shapes as materialized (
    select shape, count(distinct sandbox_id collate "C") as count, round(sum(cpu_pct_us) / 100000000, 6) as vcpu_seconds,
      sum(mem_mib_us) as mem_mib_us, sum(disk_mib_us) as disk_mib_us
    from used group by shape)
  select destroyed.*, bytes.*, totals.*,
    (select to_jsonb(c) - 'user_id' from sandbox_counts c where c.user_id = ${userId}) as current,
    (select count(*) from sandboxes
      where user_id = ${userId} and created_at >= ${from} and created_at < ${to} and ${LIVED}) as spawned
  from (
    select count(*) as destroyed, jsonb_build_object(
      'min', coalesce(min(lifetime), 0), 'average', coalesce(round(avg(lifetime), 6), 0),
      'p50', coalesce(percentile_cont(0.5) within group (order by lifetime), 0),
      'p95', coalesce(percentile_cont(0.95) within group (order by lifetime), 0)) as lifetime
    from (
      select extract(epoch from destroyed_at - created_at) as lifetime from sandboxes
      where user_id = ${userId} and destroyed_at >= ${from} and destroyed_at < ${to} and ${LIVED}) one) destroyed,
  (
    select coalesce(sum(${bytesUntil(sql`egress_bytes`, to)} - ${bytesUntil(sql`egress_bytes`, from)}), 0) as egress,
      coalesce(sum(${bytesUntil(sql`ingress_bytes`, to)} - ${bytesUntil(sql`ingress_bytes`, from)}), 0) as ingress
    from bandwidth_hours
    where user_id = ${userId} and hour > ${from}::timestamptz - interval '1 hour' and hour < ${to}) bytes,
  (
    select coalesce(sum(vcpu_seconds), 0) as vcpu_seconds,
      coalesce(round(sum(mem_mib_us) / 1000000, 6), 0) as mem_mib_seconds,
      coalesce(round(sum(disk_mib_us) / 1000000, 6), 0) as disk_mib_seconds,
      coalesce(jsonb_agg(jsonb_build_object('shape', shape, 'count', count, 'vcpu_seconds', vcpu_seconds)
        order by vcpu_seconds desc, shape), '[]') as by_shape
    from shapes) totals`

/**
 * How many of the bytes of an hour were counted before `at`, as if they were spread evenly over the time in which they
 * were recorded. Rounded down here and not after the subtraction, so that adjacent windows add up to the byte.
 */
const bytesUntil = (bytes: RawBuilder<unknown>, at: Date): RawBuilder<unknown> => sql`case
  when ${at} <= first_at then 0 when ${at} >= last_at then ${bytes}
  else floor(${bytes} * extract(epoch from ${at} - first_at) / extract(epoch from last_at - first_at)) end`
