/**
 * The durable points of operations: the transactions that write, each of which PostgreSQL syncs before it answers. The table in
 * docs/performance.md has the same numbers, with the records of the host agent.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { TEST_POSTGRES_VARIABLE } from '@warren/kit/postgres/testing'
import { sql } from 'kysely'
import { createHostedApp } from '../testing/with-host.ts'
import { destroyJob } from './destroy.ts'

// Transactions are numbered per server, so this file has one that no other test and no background work writes to.
delete process.env[TEST_POSTGRES_VARIABLE]
// Without a worker, whose sweeps write as well.
const { deps, host, user, create, send } = await createHostedApp({ startWorker: false })
await sql`alter system set autovacuum = off`.execute(deps.db)
await sql`select pg_reload_conf()`.execute(deps.db)

/** Each transaction that writes takes one number, and so does the one that asks. */
async function countWrites(work: () => Promise<unknown>): Promise<number> {
  await deps.audit.written()
  const before = await readNumber()
  await work()
  await deps.audit.written()
  const after = await readNumber()
  // Entries of the audit log are written on a separate connection that does not wait for the disk (audit/log.ts).
  const { rows } = await sql<{ n: number }>`select count(distinct xmin::text) as n from audit_log
    where xmin::text::bigint > ${before}`.execute(deps.db)
  return after - before - 1 - rows[0]!.n
}

async function readNumber(): Promise<number> {
  const { rows } = await sql<{ n: number }>`select pg_current_xact_id()::text::bigint as n`.execute(deps.db)
  return rows[0]!.n
}

test('a create has two durable points: its reservation before the host is asked, its end before the answer', async () => {
  const ada = await user()
  await create(ada)
  const seen: unknown[] = []
  host.hooks = {
    beforeCreate: async ({ id }) => {
      const { rows } = await sql`select status, reserved_mib > 0 as reserved from sandboxes where id = ${id}`.execute(
        deps.db,
      )
      seen.push(...rows)
    },
  }

  assert.equal(await countWrites(() => create(ada)), 2)
  assert.deepEqual(seen, [{ status: 'creating', reserved: true }])
  host.hooks = {}
})

test('connections leave it to the server whether an answer waits for the disk, which is the case unless it is configured', async () => {
  const { rows } = await sql<{
    source: string
  }>`select source from pg_settings where name = 'synchronous_commit'`.execute(deps.db)
  assert.ok(['default', 'configuration file', 'command line'].includes(rows[0]!.source), rows[0]!.source)
})

test('a delete has two: its beginning with the job before the answer, and its end when the host has confirmed', async () => {
  const ada = await user()
  const { id } = (await create(ada)).body.data

  assert.equal(await countWrites(() => send('DELETE', `/v1/sandboxes/${id}`, ada)), 1)
  const context = { jobId: '1', attempt: 1, signal: new AbortController().signal }
  assert.equal(await countWrites(() => destroyJob.run(deps, { id }, context)), 1)
})
