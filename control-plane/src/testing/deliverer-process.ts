/**
 * A webhook deliverer in a separate process, for tests that kill it. Its clock runs TEST_CLOCK_SCALE times as fast as the real
 * one, from TEST_CLOCK_START on, so that the retries of an hour take seconds. It works until it is killed.
 */
import { createLog } from '@warren/kit/log'
import { connectDatabase } from '../db/connect.ts'
import { startWorker } from '../jobs/worker.ts'
import { startDeliverer } from '../webhooks/deliverer.ts'
import { createTestDeps } from './app.ts'

const log = createLog({ name: 'deliverer-process', level: process.env.WARREN_LOG_LEVEL ?? 'fatal', format: 'json' })
const deps = createTestDeps(connectDatabase(process.env.DATABASE_URL!, log), { localUser: true })
const start = Number(process.env.TEST_CLOCK_START)
deps.now = () => new Date(start + (Date.now() - start) * Number(process.env.TEST_CLOCK_SCALE))
await startWorker(deps, { jobs: [], sweeps: [] })
startDeliverer(deps, { timeoutMs: Number(process.env.TEST_TIMEOUT_MS) })
process.send?.({ ready: true })
process.on('disconnect', () => process.exit(0))
