/**
 * A worker in a separate process, for tests that kill or stop it.
 *
 * Its only job pauses a sandbox in two steps with a wait in between: it reports that it began, waits (for a long time
 * if the process is to be killed), then completes the operation under its fence.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { createLog } from '@warren/kit/log'
import { Type } from 'typebox'
import { connectDatabase } from '../db/connect.ts'
import { defineJob } from '../jobs/job.ts'
import { releaseJobsOfDeadProcesses } from '../jobs/processes.ts'
import { startWorker } from '../jobs/worker.ts'
import { endMove, FenceLost } from '../sandboxes/move.ts'
import { createTestDeps } from './app.ts'

export const slowPauseJob = defineJob({
  name: 'slow-pause',
  payload: Type.Object({ id: Type.String(), fence: Type.Integer() }),
  maxAttempts: 25,
  async run(deps, { id, fence }) {
    const waits = process.env.TEST_HOLD === 'yes'
    process.send?.({ began: id })
    // A process that will be killed or stopped waits here; the event loop of a stopped process does not run.
    if (waits) await delay(2_000)
    try {
      await deps.db.transaction().execute((tx) => endMove(tx, id, 'pauseDone', fence))
      process.send?.({ committed: id })
    } catch (error) {
      if (error instanceof FenceLost) process.send?.({ refused: id })
      throw error
    }
  },
})

if (import.meta.main) {
  const log = createLog({ name: 'worker-process', level: process.env.WARREN_LOG_LEVEL ?? 'fatal', format: 'json' })
  const database = connectDatabase(process.env.DATABASE_URL!, log)
  const worker = await startWorker(createTestDeps(database), {
    jobs: [slowPauseJob],
    sweeps: [releaseJobsOfDeadProcesses],
  })
  process.send?.({ ready: true })
  process.on('disconnect', async () => {
    await worker.stop()
    await database.close()
    process.exit(0)
  })
}
