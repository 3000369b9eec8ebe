/**
 * Runs jobs and sweeps: a graphile-worker runner on our database, and the heartbeat of this process.
 *
 * The runner starts first. A heartbeat that names its pool follows at once, and then one every second. When a process
 * dies, the jobs locked by its pool are released after some seconds (processes.ts). When the runner ends on its own,
 * because the database became unreachable, it is started again with a new pool until the worker is stopped.
 */
import { EventEmitter } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import { watchPool } from '@warren/kit/postgres/connection'
import { type Runner, run, type WorkerEvents, Logger as WorkerLogger } from 'graphile-worker'
import pg from 'pg'
import type { Deps } from '../deps.ts'
import { type Job, runJob } from './job.ts'
import { HEARTBEAT_MS, removeProcess, writeHeartbeat } from './processes.ts'
import { type Sweep, startSweeps } from './sweep.ts'

const CONCURRENCY = 16
const RESTART_MS = 1_000
/** Twice the poll interval: by then a working runner has fetched jobs once. */
const FIRST_FETCH_LIMIT_MS = 4_000

export type Worker = { stop(): Promise<void> }

export async function startWorker(
  deps: Deps,
  work: { jobs: readonly Job[]; sweeps: readonly Sweep[] },
): Promise<Worker> {
  const pool = new pg.Pool({
    connectionString: deps.database.url,
    max: CONCURRENCY + 4,
    application_name: 'warren jobs',
  })
  watchPool(pool, deps.log)
  const pools: string[] = []
  const stopping = new AbortController()

  let runner = work.jobs.length > 0 ? await startRunner(deps, pool, work.jobs, pools) : undefined
  await writeHeartbeat(deps, pools)
  const runnerLoop = keepRunning()
  const heartbeatLoop = keepBeating()
  const sweeps = startSweeps(deps, work.sweeps)

  async function keepRunning(): Promise<void> {
    while (runner && !stopping.signal.aborted) {
      await runner.promise.catch((error) => deps.log.warn({ err: error }, 'job runner ended unexpectedly'))
      if (stopping.signal.aborted) return
      // A job whose result could not be written is still locked by this pool. No longer naming the pool releases it.
      pools.length = 0
      await delay(RESTART_MS, undefined, { signal: stopping.signal }).catch(() => {})
      try {
        if (!stopping.signal.aborted) runner = await startRunner(deps, pool, work.jobs, pools)
      } catch (error) {
        deps.log.warn({ err: error }, 'failed to start the job runner, retrying')
      }
    }
  }

  async function keepBeating(): Promise<void> {
    while (!stopping.signal.aborted) {
      await delay(HEARTBEAT_MS, undefined, { signal: stopping.signal }).catch(() => {})
      if (stopping.signal.aborted) return
      await writeHeartbeat(deps, pools).catch((error) => deps.log.warn({ err: error }, 'failed to write heartbeat'))
    }
  }

  return {
    async stop() {
      stopping.abort()
      await sweeps.stop()
      await runner?.stop().catch(() => {}) // It has already ended.
      await Promise.all([runnerLoop, heartbeatLoop])
      await removeProcess(deps).catch(() => {}) // Without heartbeats the process counts as dead some seconds later anyway.
      await pool.end()
    },
  }
}

async function startRunner(deps: Deps, pool: pg.Pool, jobs: readonly Job[], pools: string[]): Promise<Runner> {
  const events: WorkerEvents = new EventEmitter()
  events.on('pool:create', ({ workerPool }) => pools.push(workerPool.id))
  const runner = await run({
    pgPool: pool,
    events,
    noHandleSignals: true,
    logger: new WorkerLogger(() => (level, message) => deps.log[level === 'warning' ? 'warn' : level](message)),
    taskList: Object.fromEntries(jobs.map((job) => [job.name, task(deps, job)])),
    preset: {
      worker: {
        concurrentJobs: CONCURRENCY,
        pollInterval: 2_000,
        // Only one more than can run, because other processes cannot run the jobs that are locked here.
        localQueue: { size: CONCURRENCY + 1, ttl: 300_000, refetchDelay: { durationMs: 10 } },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
        gracefulShutdownAbortTimeout: 3_000,
      },
    },
  })
  stopUnlessItFetches(deps, runner, events)
  return runner
}

/**
 * graphile-worker caches the result of its first query even if that was a lost connection. Such a runner never fetches a
 * job, so it is stopped, and `keepRunning` starts another.
 */
function stopUnlessItFetches(deps: Deps, runner: Runner, events: WorkerEvents): void {
  const late = setTimeout(() => {
    deps.log.warn('job runner does not fetch jobs, restarting it')
    runner.stop().catch(() => {}) // It has already ended.
  }, FIRST_FETCH_LIMIT_MS)
  const settled = () => clearTimeout(late)
  events.once('localQueue:getJobs:complete', settled)
  runner.promise.then(settled, settled)
}

const task = (deps: Deps, job: Job) => async (payload: unknown, helpers: TaskHelpers) => {
  const context = {
    jobId: helpers.job.id,
    attempt: helpers.job.attempts,
    signal: helpers.abortSignal ?? new AbortController().signal,
  }
  await runJob(deps, job, payload, context)
}

type TaskHelpers = { job: { id: string; attempts: number }; abortSignal?: AbortSignal }
