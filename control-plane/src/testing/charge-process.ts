/**
 * A process that runs all jobs and charges usage without a break, for tests that kill it. It connects at once and begins
 * with the first message, so that a test has a successor ready when it kills one.
 */
import { once } from 'node:events'
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
import { startTestProcess, type TestProcess } from './test-process.ts'
import type { HostedApp } from './with-host.ts'

export type ChargeProcess = Pick<TestProcess, 'kill' | 'waitForEnd'> & { begin(): Promise<void> }

export async function startChargeProcess(
  { deps, host }: Pick<HostedApp, 'deps' | 'host'>,
  crashPoints: string,
): Promise<ChargeProcess> {
  const { child, receive, waitForEnd, kill } = startTestProcess(deps, import.meta.filename, {
    WARREN_HOST_SOCKET: host.socket,
    [CRASH_POINTS_VARIABLE]: crashPoints,
  })
  await receive((message) => message === 'ready', 'the process that charges is ready')
  return {
    waitForEnd,
    kill,
    async begin() {
      child.send('begin')
      await receive((message) => message === 'working', 'the process that charges works')
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
  process.send?.('working')
  for (;;) {
    await chargeUsage.run(deps)
    await delay(2)
  }
}
