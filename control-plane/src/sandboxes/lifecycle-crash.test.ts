/**
 * The control plane is killed with -9 at every named point of pause, resume, fork and delete, one after the other,
 * each time with a sandbox of its own in the middle of the operation. Those that are killed later find the work of
 * those before them, and may die of that. Then one process lives: within 30 s all is settled, nothing is held that no
 * living sandbox holds, and what was paid for has neither gaps nor overlaps.
 */
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import type { SandboxStatus } from '@warren/protocol'
import { sql } from 'kysely'
import { JOBS } from '../jobs/registry.ts'
import { startWorker } from '../jobs/worker.ts'
import { startApiProcess } from '../testing/api-process.ts'
import { createTestDeps, reconnect } from '../testing/app.ts'
import { createHostedApp } from '../testing/with-host.ts'

const hosted = await createHostedApp({ startWorker: false })
const { deps, host, user, create, send, assertNothingLeft } = hosted
const ada = await user({ plan: 'local' })
const crashPoints = await mkdtemp(path.join(tmpdir(), 'warren-crash-points-'))
after(() => rm(crashPoints, { recursive: true, force: true }))

const OPERATIONS: Record<string, { points: string[]; from: 'running' | 'paused'; ends: SandboxStatus[] }> = {
  pause: { points: ['begun', 'started', 'saved', 'done'], from: 'running', ends: ['paused'] },
  resume: { points: ['begun', 'started', 'restored', 'done'], from: 'paused', ends: ['running'] },
  fork: {
    points: ['admitted', 'copied', 'begun', 'started', 'restored', 'done'],
    from: 'paused',
    ends: ['paused'],
  },
  delete: { points: ['begun', 'started', 'deleted', 'done'], from: 'running', ends: ['destroyed'] },
}

const rowOf = (id: string) => deps.db.selectFrom('sandboxes').selectAll().where('id', '=', id).executeTakeFirstOrThrow()
const SETTLED: SandboxStatus[] = ['running', 'paused', 'destroyed', 'failed']
const allSettled = async () => {
  const rows = await deps.db.selectFrom('sandboxes').select('status').execute()
  return rows.every((row) => SETTLED.includes(row.status))
}

/** Made in peace, by a worker that is gone before anybody is killed. */
async function prepare(count: number, status: 'running' | 'paused'): Promise<string[]> {
  const ids: string[] = []
  for (let i = 0; i < count; i++) ids.push((await create(ada)).body.data.id)
  if (status === 'running') return ids
  const own = createTestDeps(reconnect(deps.database), { hostSocket: host.socket })
  after(() => own.hosts.close())
  const worker = await startWorker(own, { jobs: JOBS, sweeps: [] })
  for (const id of ids) await send('POST', `/v1/sandboxes/${id}/pause`, ada)
  for (const id of ids) await until(async () => (await rowOf(id)).status === 'paused')
  await worker.stop()
  return ids
}

async function dieAt(point: string, operation: string, id: string): Promise<void> {
  await writeFile(path.join(crashPoints, point), 'kill')
  const doomed = await startApiProcess(hosted, { crashPoints })
  const request = operation === 'delete' ? (['DELETE', ''] as const) : (['POST', `/${operation}`] as const)
  const asked = doomed.send(request[0], `/v1/sandboxes/${id}${request[1]}`, ada).catch(() => 0)
  await doomed.ended
  await asked
}

/** A process takes up what the one before it left, and may die of that at the same point: then another is asked. */
async function dieOf(point: string, operation: string, id: string): Promise<void> {
  const before = await traceOf(id)
  for (let tries = 0; tries < 3 && (await traceOf(id)) === before; tries++) await dieAt(point, operation, id)
}

/** Changes with whatever was asked of it. */
async function traceOf(id: string): Promise<string> {
  const children = await deps.db.selectFrom('sandboxes').select('id').where('forked_from', '=', id).execute()
  const { status, fence } = await rowOf(id)
  return `${status} ${fence} ${children.length}`
}

for (const [operation, { points, from, ends }] of Object.entries(OPERATIONS)) {
  test(`${operation} is killed at each of its points, and all is settled when somebody lives`, async () => {
    const ids = await prepare(points.length, from)
    for (const [index, point] of points.entries()) await dieOf(`${operation}.${point}`, operation, ids[index]!)

    const heir = await startApiProcess(hosted)
    await until(allSettled, 'every sandbox has settled')
    await heir.kill()

    for (const id of ids) assert.ok(ends.includes((await rowOf(id)).status), `${id} is ${(await rowOf(id)).status}`)
    await assertNothingLeft()
    await assertIntervals()
    const children = await deps.db
      .selectFrom('sandboxes')
      .select(['status', 'status_reason'])
      .where('forked_from', 'in', ids)
      .orderBy('id')
      .execute()
    if (operation !== 'fork') return
    // Of the first two nobody was told.
    assert.deepEqual(
      children.map((child) => child.status),
      ['failed', 'failed', 'running', 'running', 'running', 'running'],
    )
  })
}

test('the database cuts every connection at the point before the last commit, and each operation ends all the same', async () => {
  const api = await startApiProcess(hosted, { crashPoints })
  const [running] = await prepare(1, 'running')
  const cutAt = async (point: string, method: string, request: string) => {
    const file = path.join(crashPoints, point)
    await rm(`${file}.reached`, { force: true })
    await writeFile(file, 'hold')
    const asked = api.send(method, `/v1/sandboxes/${request}`, ada).catch(() => 0)
    await until(() => existsSync(`${file}.reached`), 'the crash point is reached', 30_000)
    await sql`select pg_terminate_backend(pid) from pg_stat_activity
      where datname = current_database() and pid <> pg_backend_pid()`.execute(deps.db)
    await rm(file)
    await asked
  }
  const settles = (status: SandboxStatus) =>
    until(
      async () => (await rowOf(running!).catch(() => undefined))?.status === status,
      `the sandbox is ${status}`,
      30_000,
    )

  await cutAt('pause.saved', 'POST', `${running}/pause`)
  await settles('paused')
  await cutAt('fork.copied', 'POST', `${running}/fork`)
  // A connection of ours may be among those that were cut.
  await until(() => allSettled().catch(() => false), 'every sandbox has settled')
  await cutAt('resume.restored', 'POST', `${running}/resume`)
  await settles('running')
  await cutAt('delete.deleted', 'DELETE', running!)
  await settles('destroyed')

  await assertNothingLeft()
  await assertIntervals()
  await api.kill()
})

/** Each begins when the one before ends, and they cover the time between the events that opened and closed them. */
async function assertIntervals(): Promise<void> {
  const rows = await deps.db.selectFrom('usage_intervals').selectAll().orderBy('sandbox_id').orderBy('id').execute()
  for (const [index, row] of rows.slice(1).entries()) {
    if (rows[index]!.sandbox_id === row.sandbox_id) assert.deepEqual(rows[index]!.ended_at, row.started_at)
  }
}
