/**
 * Resume, in this order:
 *
 *   1. One transaction moves the row to `resuming` (409), checks cap (429) and credit (402), reserves memory on the
 *      host (503), and adds the job.
 *   2. The job asks the host, which answers once the guest agent does (restore-vm.ts: retries and time limit).
 *   3. One transaction ends the operation: `running` and the billing interval, or `error` with the reason and the
 *      memory released.
 *
 * A further resume is a new operation with a fresh number of attempts.
 */
import { crashPoint } from '@warren/kit/crash-point'
import type { EventActor } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { addJob, defineJob } from '../jobs/job.ts'
import { checkConcurrentCap, checkCredit } from '../users/caps.ts'
import { withLockedUser } from '../users/locked.ts'
import { SANDBOX_CAPS } from './caps.ts'
import { beginMove } from './move.ts'
import { findOperation, Operation, operationKey } from './operation.ts'
import { reserveMemory } from './reservations.ts'
import { commitRestore, restoreVm } from './restore-vm.ts'

export const resumeJob = defineJob({
  name: 'resume-sandbox',
  payload: Operation,
  maxAttempts: 25,
  key: (operation) => operationKey('resuming', operation),
  async run(deps, operation, { signal }) {
    const row = await findOperation(deps, 'resuming', operation)
    if (!row) return
    await crashPoint('resume.started')
    const result = await restoreVm(deps, row, signal)
    if (result.outcome === 'restored') await crashPoint('resume.restored')
    await commitRestore(deps, row, result, { done: 'resumeDone', failed: 'resumeFailed' })
    await crashPoint('resume.done')
  },
})

export async function resumeSandbox(
  deps: Deps,
  sandbox: Pick<SandboxRow, 'id' | 'user_id'>,
  { actor = 'user', reason }: { actor?: EventActor; reason?: string } = {},
): Promise<SandboxRow> {
  const row = await withLockedUser(deps.db, sandbox.user_id, async (tx, user) => {
    const resuming = await beginMove(tx, sandbox.id, 'resume', { actor, reason })
    await checkConcurrentCap(tx, user, SANDBOX_CAPS)
    checkCredit(user, 'resume')
    await reserveMemory(tx, resuming)
    await addJob(tx, resumeJob, { id: resuming.id, fence: resuming.fence })
    return resuming
  })
  await crashPoint('resume.begun')
  return row
}
