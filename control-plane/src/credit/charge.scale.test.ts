/** Charging with 100,000 intervals: the past is never read again, and 10,000 open intervals are charged in one sweep. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { type RawBuilder, sql } from 'kysely'
import { createTestApp } from '../testing/app.ts'
import { chargeUsage, due, dueUsers } from './charge.ts'
import { verifyCredit } from './verify.ts'

const PAST = 100_000
const OPEN = 10_000
const USERS = 100

const { deps, user } = await createTestApp()
const users = await Promise.all(Array.from({ length: USERS }, () => user()))
const ids = users.map(({ id }) => id)

/** Triggers and foreign keys are off meanwhile, because they would take longer than everything else. */
async function fill(): Promise<void> {
  await deps.db.transaction().execute(async (tx) => {
    await sql`set local session_replication_role = replica`.execute(tx)
    await sql`insert into sandboxes (id, user_id, name, status, shape, rootfs, region, vcpu, mem_mib, disk_mib,
        bandwidth_quota_bytes)
      select 'sb-' || n, (${ids}::text[])[1 + n % ${USERS}], 'box-' || n, 'running', 's-1vcpu-1gb', 'debian:13', 'eu',
        1, 1024, 10240, 0 from generate_series(1, ${OPEN}::integer) n`.execute(tx)
    await sql`insert into usage_intervals (sandbox_id, user_id, kind, shape, cpu_pct, mem_mib, disk_mib, billable,
        started_at, ended_at, charged_until, settled, uncharged_us)
      select 'sb-' || 1 + n % ${OPEN}, (${ids}::text[])[1 + (1 + n % ${OPEN}) % ${USERS}], 'running', 's-1vcpu-1gb', 100, 1024,
        10240, true, at, at + interval '60 s', at + interval '60 s', true, 60000000
      from (select n, now() - interval '30 days' + n * interval '10 s' as at from generate_series(1, ${PAST}::integer) n) one`.execute(
      tx,
    )
    await sql`insert into usage_intervals (sandbox_id, user_id, kind, shape, cpu_pct, mem_mib, disk_mib, billable,
        started_at, charged_until)
      select id, user_id, 'running', shape, 100, mem_mib, disk_mib, true, now() - interval '5 minutes',
        now() - interval '5 minutes' from sandboxes`.execute(tx)
  })
  await sql`analyze`.execute(deps.db)
}

async function explain(query: RawBuilder<unknown>): Promise<string> {
  const { rows } = await sql<{ 'QUERY PLAN': string }>`explain ${query}`.execute(deps.db)
  return rows.map((row) => row['QUERY PLAN']).join('\n')
}

await fill()

test('what is due is found by the index of unsettled intervals', async () => {
  for (const query of [dueUsers(60), due(ids[0]!, sql`i.billable`)]) {
    const plan = await explain(query)
    assert.match(plan, /usage_intervals_unsettled/)
    assert.doesNotMatch(plan, /Seq Scan on usage_intervals/)
  }
})

test(`a sweep charges ${OPEN} intervals of ${USERS} users in seconds, and the next finds nothing to do`, async (t) => {
  const timed = async () => {
    const startedAt = performance.now()
    await chargeUsage.run(deps)
    return Math.round(performance.now() - startedAt)
  }

  const [first, second] = [await timed(), await timed()]

  t.diagnostic(`first sweep ${first} ms, second ${second} ms`)
  const { rows } = await sql<{ n: number }>`select count(*) as n from credit_entries where kind = 'usage'`.execute(
    deps.db,
  )
  assert.equal(rows[0]!.n, OPEN)
  assert.ok(first < scaleLimit(10_000), `${first} ms`)
  assert.ok(second < scaleLimit(1_000), `${second} ms`)
  assert.deepEqual(await verifyCredit(deps.db), [])
})
