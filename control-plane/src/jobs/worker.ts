/**
 * The worker: graphile-worker on the same database, our heartbeat beside it.
 *
 * Order of events: the worker; at once a heartbeat that names the worker's pool, and another each second. Jobs locked
 * by a pool that nobody living names are free again after some seconds. A worker that ends by itself (the database
 * went away) is started again, with a pool of another name, until we stop.
 */

import { EventEmitter } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import { type Runner, run, type WorkerEvents, Logger as WorkerLogger } from 'graphile-worker'
import pg from 'pg'
import { watchPool } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import { type Job, parsePayload } from './job.ts'
import { HEARTBEAT_MS, removeProcess, writeHeartbeat } from './processes.ts'
import { type Sweep, startSweeps } from './sweep.ts'

const CONCURRENCY = 16
const RESTART_MS = 1_000
/** Twice the poll interval. */
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
  const kept = keepRunning()
  const heart = startHeart()
  const sweeps = startSweeps(deps, work.sweeps)

  async function keepRunning(): Promise<void> {
    while (runner && !stopping.signal.aborted) {
      await runner.promise.catch((error) => deps.log.warn({ err: error }, 'the worker ended'))
      if (stopping.signal.aborted) return
      // A job whose end it could not write is still locked by its pool: named no longer, it is freed for others.
      pools.length = 0
      await delay(RESTART_MS, undefined, { signal: stopping.signal }).catch(() => {})
      try {
        if (!stopping.signal.aborted) runner = await startRunner(deps, pool, work.jobs, pools)
      } catch (error) {
        deps.log.warn({ err: error }, 'the worker does not start, trying again')
      }
    }
  }

  async function startHeart(): Promise<void> {
    while (!stopping.signal.aborted) {
      await delay(HEARTBEAT_MS, undefined, { signal: stopping.signal }).catch(() => {})
      if (stopping.signal.aborted) return
      await writeHeartbeat(deps, pools).catch((error) => deps.log.warn({ err: error }, 'could not say that I am alive'))
    }
  }

  return {
    async stop() {
      stopping.abort()
      await sweeps.stop()
      await runner?.stop().catch(() => {}) // Already ended: nothing to stop.
      await Promise.all([kept, heart])
      await removeProcess(deps).catch(() => {}) // Silence says the same a few seconds later.
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
        // One more than can run: what is locked here is out of reach for every other process.
        localQueue: { size: CONCURRENCY + 1, ttl: 300_000, refetchDelay: { durationMs: 10 } },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
        gracefulShutdownAbortTimeout: 3_000,
      },
    },
  })
  endUnlessItFetches(deps, runner, events)
  return runner
}

/**
 * The library keeps the answer of its first question, also when that was a lost connection: such a runner never gets a
 * job. It is ended, and `keepRunning` begins another.
 */
function endUnlessItFetches(deps: Deps, runner: Runner, events: WorkerEvents): void {
  const late = setTimeout(() => {
    deps.log.warn('the worker cannot fetch jobs, starting it again')
    runner.stop().catch(() => {}) // It has ended by itself.
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
  await job.run(deps, parsePayload(job, payload), context)
}

type TaskHelpers = { job: { id: string; attempts: number }; abortSignal?: AbortSignal }
