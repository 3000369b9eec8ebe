/**
 * A worker in a separate process, for tests that kill or stop it.
 *
 * Its only job pauses a sandbox in two steps with a wait in between: it reports that it began, waits
 * if the process is to be killed or suspended, then completes the operation under its fence.
 */
import { once } from 'node:events'
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
    process.send?.({ began: id })
    // Any message from the test ends the wait, so a slow machine cannot end it before the process was suspended.
    if (process.env.TEST_HOLD === 'yes') await once(process, 'message')
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
