/** Account metrics with 100,000 sandboxes of the past: only what is inside the window is read, wherever the window is. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type RawBuilder, sql } from 'kysely'
import { createTestApp } from '../testing/app.ts'
import { accountMetrics } from './get-account.ts'
import { accountSeries } from './get-account-series.ts'

const SANDBOXES = 100_000
const DAY_MS = 86_400_000

const { deps, user } = await createTestApp()
const owner = await user()

/**
 * A sandbox every five minutes for a year, each deleted after its lifetime: one to ten hours, some after 20 days. Triggers and
 * foreign keys are off meanwhile, because they would take longer than everything else.
 */
async function fill(): Promise<void> {
  await deps.db.transaction().execute(async (tx) => {
    await sql`set local session_replication_role = replica`.execute(tx)
    await sql`insert into sandboxes (id, user_id, name, status, shape, rootfs, region, vcpu, mem_mib, disk_mib,
        bandwidth_quota_bytes, created_at, running_at, destroyed_at)
      select 'sb-' || n, ${owner.id}, 'box-' || n, 'destroyed', 's-1vcpu-1gb', 'debian:13', 'eu', 1, 1024, 10240, 0, at, at,
        at + case when n % 50 = 0 then interval '20 days' else (1 + n % 10) * interval '1 hour' end
      from (select n, now() - n * interval '5 minutes' as at from generate_series(1, ${SANDBOXES}::integer) n) one`.execute(
      tx,
    )
    await sql`update sandboxes set status = 'running', destroyed_at = null where destroyed_at > now()`.execute(tx)
    await sql`insert into usage_intervals (sandbox_id, user_id, kind, shape, cpu_pct, mem_mib, disk_mib, billable,
        started_at, ended_at, charged_until, settled, uncharged_us)
      select id, user_id, 'running', shape, 100, mem_mib, disk_mib, true, created_at, destroyed_at,
        coalesce(destroyed_at, now()), destroyed_at is not null, 0 from sandboxes`.execute(tx)
    await sql`insert into bandwidth_hours (user_id, hour, sandbox_id, egress_bytes, ingress_bytes, first_at, last_at)
      select user_id, date_trunc('hour', created_at), id, 1000, 1000, created_at, created_at from sandboxes`.execute(tx)
  })
  await sql`vacuum (analyze) sandboxes, usage_intervals, bandwidth_hours`.execute(deps.db)
}

type Node = {
  'Node Type': string
  'Relation Name'?: string
  'Actual Rows': number
  'Actual Loops': number
  'Rows Removed by Filter'?: number
  'Rows Removed by Index Recheck'?: number
  Plans?: Node[]
}

/** The rows that were read of each table, used or not, and the ways in which they were found. */
async function readRows(query: RawBuilder<unknown>): Promise<{ rows: number; kinds: Set<string> }> {
  const { rows } = await sql<{ 'QUERY PLAN': [{ Plan: Node }] }>`explain (analyze, format json) ${query}`.execute(
    deps.db,
  )
  const scans = flatten(rows[0]!['QUERY PLAN'][0].Plan).filter((node) => node['Relation Name'])
  return {
    rows: scans.reduce(
      (sum, node) =>
        sum +
        node['Actual Loops'] *
          (node['Actual Rows'] + (node['Rows Removed by Filter'] ?? 0) + (node['Rows Removed by Index Recheck'] ?? 0)),
      0,
    ),
    kinds: new Set(scans.map((node) => `${node['Node Type']} on ${node['Relation Name']}`)),
  }
}

const flatten = (node: Node): Node[] => [node, ...(node.Plans ?? []).flatMap(flatten)]

await fill()

test('what is read depends on the window, not on how many sandboxes there ever were', async (t) => {
  const nowMs = Date.now()
  for (const daysAgo of [0, 3, 100, 300]) {
    const to = new Date(nowMs - daysAgo * DAY_MS)
    const from = new Date(to.getTime() - DAY_MS)
    for (const [name, query] of [
      ['metrics', accountMetrics(owner.id, from, to)],
      ['series', accountSeries(owner.id, from, to, 'hour')],
    ] as const) {
      const { rows, kinds } = await readRows(query)
      t.diagnostic(`${name} of ${daysAgo} days ago: ${rows} rows`)
      // A day has 288 new sandboxes, as many deleted, and about 400 more that are still there.
      assert.ok(rows < 3000, `${name} of ${daysAgo} days ago reads ${rows} rows`)
      for (const table of ['sandboxes', 'usage_intervals', 'bandwidth_hours'])
        assert.ok(!kinds.has(`Seq Scan on ${table}`), `${name} of ${daysAgo} days ago scans ${table}`)
    }
  }
})
