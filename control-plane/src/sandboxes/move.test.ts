import assert from 'node:assert/strict'
import { test } from 'node:test'
import { SANDBOX_MOVES, SANDBOX_STATUSES } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import { createTestApp } from '../testing/app.ts'
import { insertSandbox } from '../testing/sandboxes.ts'
import { beginMove, endMove, FenceLost } from './move.ts'

const { deps, user } = await createTestApp()
const { id: userId } = await user()
const inTransaction = <T>(work: Parameters<ReturnType<typeof deps.db.transaction>['execute']>[0]) =>
  deps.db.transaction().execute(work) as Promise<T>
const statusOf = async (id: string) =>
  (await deps.db.selectFrom('sandboxes').select('status').where('id', '=', id).executeTakeFirstOrThrow()).status

test('beginning an operation raises the fence, and only that fence can end it', async () => {
  const sandbox = await insertSandbox(deps.db, userId, 'running')

  const pausing = await deps.db.transaction().execute((tx) => beginMove(tx, sandbox.id, 'pause', { reason: 'asked' }))
  const paused = await deps.db.transaction().execute((tx) => endMove(tx, sandbox.id, 'pauseDone', pausing.fence))

  assert.deepEqual([pausing.status, pausing.fence, pausing.status_reason], ['pausing', sandbox.fence + 1, 'asked'])
  assert.deepEqual([paused.status, paused.fence], ['paused', pausing.fence])
  assert.ok(paused.paused_at)
})

test('of two concurrent operations on one sandbox, one begins and the other gets 409', async () => {
  const sandbox = await insertSandbox(deps.db, userId, 'running')
  const race = () => inTransaction((tx) => beginMove(tx, sandbox.id, 'pause'))

  const results = await Promise.allSettled([race(), race(), race(), race()])

  const lost = results.filter((result) => result.status === 'rejected')
  assert.equal(lost.length, 3)
  for (const { reason } of lost) {
    assert.deepEqual([reason.status, reason.data.message], [409, 'sandbox is pausing, expected running'])
  }
})

test('a delete takes over from an operation in progress, which can then no longer commit', async () => {
  const sandbox = await insertSandbox(deps.db, userId, 'running')
  const pausing = await deps.db.transaction().execute((tx) => beginMove(tx, sandbox.id, 'pause'))

  await deps.db.transaction().execute((tx) => beginMove(tx, sandbox.id, 'destroy'))

  await assert.rejects(
    inTransaction((tx) => endMove(tx, sandbox.id, 'pauseDone', pausing.fence)),
    FenceLost,
  )
  assert.equal(await statusOf(sandbox.id), 'destroying')
})

test('an older operation cannot end a newer one of the same kind', async () => {
  const sandbox = await insertSandbox(deps.db, userId, 'running')
  const first = await deps.db.transaction().execute((tx) => beginMove(tx, sandbox.id, 'pause'))
  await deps.db.transaction().execute((tx) => endMove(tx, sandbox.id, 'pauseFailed', first.fence))
  const second = await deps.db.transaction().execute((tx) => beginMove(tx, sandbox.id, 'pause'))

  await assert.rejects(
    inTransaction((tx) => endMove(tx, sandbox.id, 'pauseDone', first.fence)),
    FenceLost,
  )
  assert.equal(await statusOf(sandbox.id), 'pausing')
  await deps.db.transaction().execute((tx) => endMove(tx, sandbox.id, 'pauseDone', second.fence))
})

test('every move from every status follows SANDBOX_MOVES', async () => {
  for (const [move, { from, to, fence }] of Object.entries(SANDBOX_MOVES)) {
    for (const status of SANDBOX_STATUSES) {
      const sandbox = await insertSandbox(deps.db, userId, status)
      const attempt = inTransaction((tx) =>
        fence === 'begins'
          ? beginMove(tx, sandbox.id, move as 'pause')
          : endMove(tx, sandbox.id, move as 'pauseDone', sandbox.fence),
      )
      const allowed = (from as readonly string[]).includes(status)
      if (allowed) await attempt
      else await assert.rejects(attempt)
      assert.equal(await statusOf(sandbox.id), allowed ? to : status, `${move} from ${status}`)
    }
  }
})

test('the counts per status follow every insert and move: single, in bulk and rolled back', async () => {
  const { id } = await user()
  const counted = async () =>
    deps.db.selectFrom('sandbox_counts').selectAll().where('user_id', '=', id).executeTakeFirst()
  const rows: SandboxRow[] = []
  for (const status of ['running', 'running', 'paused', 'failed'] as const) {
    rows.push(await insertSandbox(deps.db, id, status))
  }

  await Promise.all(rows.slice(0, 2).map((row) => inTransaction((tx) => beginMove(tx, row.id, 'pause'))))
  await assert.rejects(
    inTransaction(async (tx) => {
      await beginMove(tx, rows[2]!.id, 'destroy')
      throw new Error('rolled back')
    }),
  )
  await deps.db.updateTable('sandboxes').set({ bandwidth_ingress_bytes: 7 }).where('user_id', '=', id).execute()

  const { user_id: _, ...counts } = (await counted())!
  assert.deepEqual(Object.fromEntries(Object.entries(counts).filter(([, n]) => n !== 0)), {
    pausing: 2,
    paused: 1,
    failed: 1,
  })
})
