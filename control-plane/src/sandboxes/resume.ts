/**
 * Resume, in this order:
 *
 *   1. one transaction: `resuming` with its fence (409), the cap (429), credit (402), memory on its host (503), the job
 *   2. the job asks the host, which answers when the guest's agent did (restore-vm.ts: attempts, budget, reasons)
 *   3. one transaction: `running` and the billing interval; or `error` with the reason, and the memory given back
 *
 * Resuming again begins a new operation, so it has all its attempts again.
 */
import { crashPoint } from '@warren/kit/crash-point'
import type { EventActor } from '@warren/protocol'
import type { Tx } from '../db/connect.ts'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { addJob, defineJob } from '../jobs/job.ts'
import { checkCredit, checkResumeCap, lockUser } from './caps.ts'
import { beginMove } from './move.ts'
import { findOperation, Operation, operationKey } from './operation.ts'
import { reserveMemory } from './placement.ts'
import { restoreVm } from './restore-vm.ts'

export const resumeJob = defineJob({
  name: 'resume-sandbox',
  payload: Operation,
  maxAttempts: 25,
  async run(deps, { id, fence }, { signal }) {
    const row = await findOperation(deps, id, 'resuming', fence)
    if (!row) return
    await crashPoint('resume.started')
    await restoreVm(deps, row, { done: 'resumeDone', failed: 'resumeFailed', crash: 'resume.restored' }, signal)
    await crashPoint('resume.done')
  },
})

export async function resumeSandbox(
  deps: Deps,
  sandbox: Pick<SandboxRow, 'id' | 'user_id'>,
  { actor = 'user', reason }: { actor?: EventActor; reason?: string } = {},
): Promise<SandboxRow> {
  const row = await deps.db.transaction().execute(async (tx) => {
    const user = await lockUser(tx, sandbox.user_id)
    const begun = await beginMove(tx, sandbox.id, 'resume', { actor, reason })
    await checkResumeCap(tx, sandbox.user_id, user.plan)
    checkCredit(user, 'resume')
    await reserveMemory(tx, begun)
    await addResumeJob(tx, begun)
    return begun
  })
  await crashPoint('resume.begun')
  return row
}

export const addResumeJob = (tx: Tx, { id, fence }: Pick<SandboxRow, 'id' | 'fence'>): Promise<void> =>
  addJob(tx, resumeJob, { id, fence }, { key: operationKey('resuming', id, fence) })
