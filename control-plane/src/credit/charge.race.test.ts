/**
 * Charges and changes of status at the same time, with the real clock: a transaction that began before a charge may end an
 * interval after it. Intervals still follow each other without gaps or overlaps, and the ledger is their sum.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { sql } from 'kysely'
import { costOf } from '../testing/credit-clock.ts'
import { createHostedApp } from '../testing/with-host.ts'
import { chargeUser } from './charge.ts'
import { verifyCredit } from './verify.ts'

const { deps, user, create, send } = await createHostedApp({ host: { memMib: 1_000_000 } })
const SANDBOXES = 3
const ROUNDS = 8
const SHAPE = 's-0.25vcpu-512mb'

test('charges that race with pause, resume, resize and delete leave no gap, no overlap and the exact sum', async () => {
  const ada = await user()
  const ids: string[] = []
  for (let n = 0; n < SANDBOXES; n++) ids.push((await create(ada, { shape: SHAPE })).body.data.id)
  const statusOf = async (id: string) =>
    (await deps.db.selectFrom('sandboxes').select('status').where('id', '=', id).executeTakeFirstOrThrow()).status

  let ended = false
  const charging = Array.from({ length: 2 }, async () => {
    while (!ended) await chargeUser(deps, ada.id)
  })
  const use = async (id: string) => {
    for (let round = 1; round <= ROUNDS; round++) {
      await sql`update sandboxes set disk_mib = disk_mib + 1024 where id = ${id}`.execute(deps.db)
      await send('POST', `/v1/sandboxes/${id}/pause`, ada)
      await until(async () => (await statusOf(id)) === 'paused')
      await send('POST', `/v1/sandboxes/${id}/resume`, ada)
      await until(async () => (await statusOf(id)) === 'running')
    }
    await send('DELETE', `/v1/sandboxes/${id}`, ada)
  }
  await Promise.all(ids.map(use))
  ended = true
  await Promise.all(charging)
  await chargeUser(deps, ada.id)

  const { rows } = await sql<Row>`select sandbox_id, kind, disk_mib, ended_at = coalesce(lead(started_at) over (
      partition by sandbox_id order by id), ended_at) as followed,
      (extract(epoch from ended_at - started_at) * 1000000)::bigint::text as us
    from usage_intervals order by id`.execute(deps.db)
  assert.equal(rows.length, SANDBOXES * (1 + 3 * ROUNDS))
  assert.ok(rows.every((row) => row.followed))
  const usage = rows.map(({ kind, disk_mib, us }) => ({ kind, shape: SHAPE, diskMib: disk_mib, us: BigInt(us) }))
  const { credit_micro } = await deps.db
    .selectFrom('users')
    .select('credit_micro')
    .where('id', '=', ada.id)
    .executeTakeFirstOrThrow()
  assert.equal(500_000_000 - credit_micro, costOf(usage))
  assert.deepEqual(await verifyCredit(deps.db), [])
})

type Row = { sandbox_id: string; kind: 'running' | 'paused'; disk_mib: number; followed: boolean; us: string }
