import assert from 'node:assert/strict'
import { test } from 'node:test'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { sql } from 'kysely'
import { Type } from 'typebox'
import { beginMove } from '../sandboxes/move.ts'
import { createTestApp, createTestDeps } from '../testing/app.ts'
import { insertSandbox } from '../testing/sandboxes.ts'
import { startTestProcess } from '../testing/test-process.ts'
import { slowPauseJob } from '../testing/worker-process.ts'
import { addJob, defineJob } from './job.ts'
import { DEAD_AFTER_S, releaseJobsOfDeadProcesses } from './processes.ts'
import { startWorker } from './worker.ts'

const { deps, user } = await createTestApp()
const { id: userId } = await user()

type WorkerMessage = { ready?: true; began?: string; committed?: string; refused?: string }

async function startProcess(hold: boolean) {
  const file = new URL('../testing/worker-process.ts', import.meta.url).pathname
  const { child, receive } = startTestProcess(deps, file, { TEST_HOLD: hold ? 'yes' : 'no' })
  const messages: WorkerMessage[] = []
  child.on('message', (message) => messages.push(message as WorkerMessage))
  const count = (kind: keyof WorkerMessage) => messages.filter((message) => kind in message).length
  await receive((message: WorkerMessage) => message.ready === true, 'the process is ready')
  return { child, count, end: () => child.disconnect() }
}

async function beginPauses(n: number): Promise<string[]> {
  const ids: string[] = []
  for (let i = 0; i < n; i++) {
    const { id } = await insertSandbox(deps.db, userId, 'running')
    await deps.db.transaction().execute(async (tx) => {
      const { fence } = await beginMove(tx, id, 'pause')
      await addJob(tx, slowPauseJob, { id, fence })
    })
    ids.push(id)
  }
  return ids
}

const countStatus = async (ids: string[], status: string) => {
  const rows = await deps.db.selectFrom('sandboxes').select('status').where('id', 'in', ids).execute()
  return rows.filter((row) => row.status === status).length
}
const countJobs = async () => {
  const { rows } = await sql<{ n: number }>`select count(*) as n from graphile_worker.jobs`.execute(deps.db)
  return rows[0]!.n
}

test('a job added in a transaction that fails never runs; one that commits runs once with its payload', async () => {
  const seen: unknown[] = []
  const job = defineJob({
    name: 'note',
    payload: Type.Object({ n: Type.Integer() }),
    maxAttempts: 3,
    async run(_deps, payload) {
      seen.push(payload)
    },
  })
  const own = createTestDeps(deps.database)
  const worker = await startWorker(own, { jobs: [job], sweeps: [] })

  await assert.rejects(
    deps.db.transaction().execute(async (tx) => {
      await addJob(tx, job, { n: 1 })
      throw new Error('rolled back')
    }),
  )
  await deps.db.transaction().execute((tx) => addJob(tx, job, { n: 2 }))

  await until(() => seen.length > 0)
  await worker.stop()
  assert.deepEqual(seen, [{ n: 2 }])
})

test('a job that fails is retried', async () => {
  let attempts = 0
  const job = defineJob({
    name: 'fail-once',
    payload: Type.Object({}),
    maxAttempts: 5,
    async run() {
      attempts++
      if (attempts === 1) throw new Error('first attempt')
    },
  })
  const worker = await startWorker(createTestDeps(deps.database), { jobs: [job], sweeps: [] })

  await deps.db.transaction().execute((tx) => addJob(tx, job, {}))

  await until(() => attempts === 2, 'the job ran twice', 20_000)
  await worker.stop()
})

test('a worker continues after all its database connections were terminated', async () => {
  const seen: number[] = []
  const job = defineJob({
    name: 'record',
    payload: Type.Object({ n: Type.Integer() }),
    maxAttempts: 5,
    async run(_deps, { n }) {
      seen.push(n)
    },
  })
  const worker = await startWorker(createTestDeps(deps.database), { jobs: [job], sweeps: [] })

  await sql`select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'warren jobs'`.execute(
    deps.db,
  )
  await deps.db.transaction().execute((tx) => addJob(tx, job, { n: 1 }))

  await until(() => seen.includes(1), 'the job ran', 20_000)
  await worker.stop()
})

test('jobs of a process killed with SIGKILL are completed by a live one within 10 seconds', async () => {
  const victim = await startProcess(true)
  const ids = await beginPauses(20)
  await until(() => victim.count('began') > 0)

  // Ready before the kill, so that the time limit covers the takeover and not the start of a process.
  const successor = await startProcess(false)
  victim.child.kill('SIGKILL')
  const killedAt = Date.now()

  await until(async () => (await countStatus(ids, 'paused')) === ids.length, 'all are paused', 15_000)
  assert.ok(Date.now() - killedAt < scaleLimit(10_000), `${Date.now() - killedAt} ms`)
  // The messages of the process arrive separately from its writes.
  await until(() => successor.count('committed') === ids.length)
  assert.equal(victim.count('committed'), 0)
  await until(async () => (await countJobs()) === 0)
  successor.end()
})

test('a process that was suspended and continues cannot commit', async () => {
  const suspended = await startProcess(true)
  const ids = await beginPauses(5)
  await until(() => suspended.count('began') === 5)

  suspended.child.kill('SIGSTOP')
  const successor = await startProcess(false)
  await until(async () => (await countStatus(ids, 'paused')) === ids.length, 'all are paused', 30_000)
  suspended.child.kill('SIGCONT')
  suspended.child.send('continue')

  // It continues and tries to commit all five. Each commit must be rejected and change nothing.
  await until(() => suspended.count('refused') >= 5)
  await until(() => successor.count('committed') === 5)
  assert.equal(suspended.count('committed'), 0)
  assert.equal(await countStatus(ids, 'paused'), ids.length)
  await until(async () => (await countJobs()) === 0)
  suspended.end()
  successor.end()
})

test('only processes without a recent heartbeat are removed', async () => {
  const silent = createTestDeps(deps.database)
  const alive = createTestDeps(deps.database)
  await sql`insert into service_processes (id, seen_at)
    values (${silent.processId}, now() - make_interval(secs => ${DEAD_AFTER_S + 1})), (${alive.processId}, now())`.execute(
    deps.db,
  )

  await releaseJobsOfDeadProcesses.run(deps)

  const rows = await deps.db.selectFrom('service_processes').select('id').execute()
  const left = rows.map((row) => row.id)
  assert.deepEqual([left.includes(silent.processId), left.includes(alive.processId)], [false, true])
})
