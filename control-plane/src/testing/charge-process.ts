/**
 * A process that runs all jobs and charges usage without a break, for tests that kill it. It connects at once and begins
 * with the first message, so that a test has a successor ready when it kills one.
 */
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { after } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { CRASH_POINTS_VARIABLE } from '@warren/kit/crash-point'
import { createLog } from '@warren/kit/log'
import { chargeUsage } from '../credit/charge.ts'
import { connectDatabase } from '../db/connect.ts'
import { watchHosts } from '../hosts/heartbeat.ts'
import { releaseJobsOfDeadProcesses } from '../jobs/processes.ts'
import { JOBS } from '../jobs/registry.ts'
import { startWorker } from '../jobs/worker.ts'
import { createTestDeps } from './app.ts'
import type { HostedApp } from './with-host.ts'

export type ChargeProcess = { begin(): Promise<void>; kill(): Promise<void>; ended: Promise<unknown> }

export async function startChargeProcess(
  { deps, host }: Pick<HostedApp, 'deps' | 'host'>,
  crashPoints: string,
): Promise<ChargeProcess> {
  const child: ChildProcess = fork(import.meta.filename, {
    env: {
      ...process.env,
      // With the test runner's variable the child would behave like a test file.
      NODE_TEST_CONTEXT: undefined,
      DATABASE_URL: deps.database.url,
      WARREN_HOST_SOCKET: host.socket,
      [CRASH_POINTS_VARIABLE]: crashPoints,
    },
  })
  const ended = new Promise((resolve) => child.once('exit', resolve))
  after(() => child.kill('SIGKILL'))
  await once(child, 'message')
  return {
    ended,
    async begin() {
      child.send('begin')
      await once(child, 'message')
    },
    async kill() {
      child.kill('SIGKILL')
      await ended
    },
  }
}

if (import.meta.main) {
  const log = createLog({ name: 'charge-process', level: process.env.WARREN_LOG_LEVEL ?? 'fatal', format: 'json' })
  const database = connectDatabase(process.env.DATABASE_URL!, log)
  const deps = createTestDeps(database, { hostSocket: process.env.WARREN_HOST_SOCKET!, chargeSeconds: 1 })
  process.on('disconnect', () => process.exit(0))
  await watchHosts.run(deps)
  process.send?.('ready')
  await once(process, 'message')
  await startWorker(deps, { jobs: JOBS, sweeps: [releaseJobsOfDeadProcesses] })
  process.send?.('begun')
  for (;;) {
    await chargeUsage.run(deps)
    await delay(2)
  }
}
