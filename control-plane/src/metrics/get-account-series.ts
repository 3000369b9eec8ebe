/**
 * What happened to the sandboxes of a user in each hour or day of a window. docs/api.md#account-metrics defines each value.
 *
 * Buckets begin at full hours or days in UTC; the first and the last one contain only what is inside the window. There is
 * no bucket after now. `running` is sampled at the end of each bucket: an interval adds one to the first bucket whose end
 * it contains, and subtracts it from the first one whose end is after it. The sum of these is `running`.
 */
import {
  METRICS_BUCKET_MS,
  METRICS_SERIES_SPAN_DEFAULT_MS,
  type MetricsBucket,
  type UserMetricsSeriesQuery,
  type UserMetricsSeriesView,
} from '@warren/protocol'
import { type RawBuilder, sql } from 'kysely'
import type { Deps } from '../deps.ts'
import { renderTime } from '../sandboxes/view.ts'
import { LIVED } from './get-account.ts'
import { overlappingIntervals } from './overlapping-intervals.ts'
import { getWindow } from './window.ts'

type Row = { ts: Date; spawned: number; destroyed: number; running: number }

export async function getAccountSeries(
  deps: Deps,
  userId: string,
  query: UserMetricsSeriesQuery,
): Promise<UserMetricsSeriesView> {
  const { from, to } = getWindow(deps, query, METRICS_SERIES_SPAN_DEFAULT_MS)
  const bucket = query.bucket ?? 'hour'
  const { rows } = await accountSeries(userId, from, to, bucket).execute(deps.db)
  return {
    from: from.toISOString(),
    to: to.toISOString(),
    bucket,
    buckets: rows.map((row) => ({ ...row, ts: renderTime(row.ts) })),
  }
}

export function accountSeries(userId: string, from: Date, to: Date, bucket: MetricsBucket): RawBuilder<Row> {
  const stepMs = METRICS_BUCKET_MS[bucket]
  const first = new Date(Math.floor(from.getTime() / stepMs) * stepMs)
  const step = sql`make_interval(secs => ${stepMs / 1000})`
  const bucketOf = (time: RawBuilder<unknown>) => sql`date_bin(${step}, ${time}, ${first})`
  // The end of a bucket belongs to it here, because that is where it is sampled.
  const sampleOf = (time: RawBuilder<unknown>) =>
    sql`greatest(${first}, date_bin(${step}, ${time} - interval '1 microsecond', ${first}))`
  return sql<Row>`
    with ends as (select least(${to}, now()) as at),
    buckets as (
      select ts from ends, generate_series(${first}::timestamptz, ends.at - interval '1 microsecond', ${step}) ts
      where ${from} < ends.at),
    spawned as (
      select ${bucketOf(sql`created_at`)} as ts, count(*) as n from sandboxes
      where user_id = ${userId} and created_at >= ${from} and created_at < ${to} and ${LIVED} group by 1),
    destroyed as (
      select ${bucketOf(sql`destroyed_at`)} as ts, count(*) as n from sandboxes
      where user_id = ${userId} and destroyed_at >= ${from} and destroyed_at < ${to} and ${LIVED} group by 1),
    ran as materialized (
      select started_at, ended_at, ends.at as sampled_until
      from (${overlappingIntervals(userId, from, to)}) overlapping, ends
      where kind = 'running' and started_at <= ends.at),
    changed as (
      select ts, sum(n) as n from (
        select ${sampleOf(sql`started_at`)} as ts, 1 as n from ran
        union all
        select ${sampleOf(sql`ended_at`)}, -1 from ran where ended_at <= sampled_until) change
      group by ts)
    select ts, coalesce(spawned.n, 0) as spawned, coalesce(destroyed.n, 0) as destroyed,
      coalesce(sum(changed.n) over (order by ts), 0) as running
    from buckets left join spawned using (ts) left join destroyed using (ts) left join changed using (ts) order by ts`
}
