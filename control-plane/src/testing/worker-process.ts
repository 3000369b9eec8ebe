/**
 * A worker in a process of its own, for tests that kill or stop it.
 *
 * Its one job pauses a sandbox in two steps with a wait between them: it writes that it began, waits until the test
 * lets it go on (or for ever, in a process that is to be killed), then ends the operation under its fence.
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
    const holds = process.env.TEST_HOLD === 'yes'
    process.send?.({ began: id })
    // A process that is to die or be stopped holds its job here; the event loop of a stopped one stands still.
    if (holds) await delay(2_000)
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
