/**
 * The control plane is killed with SIGKILL at every crash point of pause, resume, fork and delete, each time with another
 * sandbox in the middle of the operation. A later process takes over the jobs of earlier ones, and may be killed by
 * them. Then one process stays alive: within 60 s all operations have ended, no resource has leaked, and the usage
 * intervals have neither gaps nor overlaps.
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

/** The start of a process takes most of it. */
const KILL_LIMIT_MS = 120_000

const rowOf = (id: string) => deps.db.selectFrom('sandboxes').selectAll().where('id', '=', id).executeTakeFirstOrThrow()
const SETTLED: SandboxStatus[] = ['running', 'paused', 'destroyed', 'failed']
const allSettled = async () => {
  const rows = await deps.db.selectFrom('sandboxes').select('status').execute()
  return rows.every((row) => SETTLED.includes(row.status))
}

/** Uses a worker that has stopped before the first process is killed. */
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

async function killAt(point: string, operation: string, id: string): Promise<void> {
  await writeFile(path.join(crashPoints, point), 'kill')
  const victim = await startApiProcess(hosted, { crashPoints })
  const request = operation === 'delete' ? (['DELETE', ''] as const) : (['POST', `/${operation}`] as const)
  const asked = victim.send(request[0], `/v1/sandboxes/${id}${request[1]}`, ada).catch(() => 0)
  await victim.ended
  await asked
}

/**
 * A process takes over the jobs of the previous ones and may be killed by them at the same point, before it has handled
 * the request. Then the request is sent to another process; on a busy machine that can happen several times.
 */
async function killDuring(point: string, operation: string, id: string): Promise<void> {
  const before = await fingerprintOf(id, point)
  const killAgain = async () => {
    await killAt(point, operation, id)
    return (await fingerprintOf(id, point)) !== before
  }
  await until(killAgain, `a process is killed at ${point} during its own request`, KILL_LIMIT_MS)
}

/** Before these points a child has an owner, and is rolled back when that process dies. */
const OWNED_CHILD_POINTS = ['fork.admitted', 'fork.copied']

/** Changes whenever an operation on the sandbox has got as far as the point requires. */
async function fingerprintOf(id: string, point: string): Promise<string> {
  const children = await deps.db
    .selectFrom('sandboxes')
    .select('id')
    .where('forked_from', '=', id)
    .$if(!OWNED_CHILD_POINTS.includes(point), (query) => query.where('owner', 'is', null))
    .execute()
  const { status, fence } = await rowOf(id)
  return `${status} ${fence} ${children.length}`
}

for (const [operation, { points, from, ends }] of Object.entries(OPERATIONS)) {
  test(`${operation} ends correctly after a kill at each of its crash points`, async () => {
    const ids = await prepare(points.length, from)
    for (const [index, point] of points.entries()) await killDuring(`${operation}.${point}`, operation, ids[index]!)

    const successor = await startApiProcess(hosted)
    await until(allSettled, 'every sandbox has settled')
    await successor.kill()

    for (const id of ids) assert.ok(ends.includes((await rowOf(id)).status), `${id} is ${(await rowOf(id)).status}`)
    await assertNothingLeft()
    await assertIntervals()
    const children = await deps.db
      .selectFrom('sandboxes')
      .select(['status', 'forked_from'])
      .where('forked_from', 'in', ids)
      .orderBy('id')
      .execute()
    if (operation !== 'fork') return
    // A request that was repeated left a child that is rolled back; the last child of each source counts.
    const last = new Map(children.map((child) => [child.forked_from, child.status]))
    // The first two were killed before the response, so their children are rolled back.
    assert.deepEqual(
      ids.map((id) => last.get(id)),
      ['failed', 'failed', 'running', 'running', 'running', 'running'],
    )
    assert.equal(children.filter((child) => child.status === 'running').length, 4)
  })
}

test('each operation ends correctly when every database connection breaks before its last commit', async () => {
  const api = await startApiProcess(hosted, { crashPoints })
  const [running] = await prepare(1, 'running')
  const disconnectAt = async (point: string, method: string, request: string) => {
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

  await disconnectAt('pause.saved', 'POST', `${running}/pause`)
  await settles('paused')
  await disconnectAt('fork.copied', 'POST', `${running}/fork`)
  // The connections of this test were terminated as well.
  await until(() => allSettled().catch(() => false), 'every sandbox has settled')
  await disconnectAt('resume.restored', 'POST', `${running}/resume`)
  await settles('running')
  await disconnectAt('delete.deleted', 'DELETE', running!)
  await settles('destroyed')

  await assertNothingLeft()
  await assertIntervals()
  await api.kill()
})

/** Each interval of a sandbox begins when the previous one ends. */
async function assertIntervals(): Promise<void> {
  const rows = await deps.db.selectFrom('usage_intervals').selectAll().orderBy('sandbox_id').orderBy('id').execute()
  for (const [index, row] of rows.slice(1).entries()) {
    if (rows[index]!.sandbox_id === row.sandbox_id) assert.deepEqual(rows[index]!.ended_at, row.started_at)
  }
}
