/**
 * Pause, in this order:
 *
 *   1. one transaction: `pausing` with its fence, and the job
 *   2. the job asks the host, which answers when memory, disk and devices are saved for good
 *   3. one transaction: `paused`, the generation, the billing interval, the memory given back. The address stays
 *
 * A host that refuses has saved nothing and the VM goes on: `running` again, with the reason. One that does not answer
 * may have done either, so the job asks again, with the same fence, until it says which: what is done is not done
 * twice. A VM that is no longer there to be paused is found by reconcile.ts.
 */
import { crashPoint } from '@warren/kit/crash-point'
import type { EventActor } from '@warren/protocol'
import type { Tx } from '../db/connect.ts'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { HostError, reasonOf } from '../hosts/failure.ts'
import { addJob, defineJob } from '../jobs/job.ts'
import { findVm } from './judge.ts'
import { beginMove, endMove } from './move.ts'
import { findOperation, Operation, operationKey } from './operation.ts'
import { releasePlace } from './place.ts'

/** The largest memory, written at the pace of a slow disk. */
const PAUSE_LIMIT_MS = 120_000

export const pauseJob = defineJob({
  name: 'pause-sandbox',
  payload: Operation,
  maxAttempts: 25,
  async run(deps, { id, fence }, { signal }) {
    const row = await findOperation(deps, id, 'pausing', fence)
    if (!row) return
    await crashPoint('pause.started')
    try {
      const host = await deps.hosts.get(row.host_id)
      const { generation } = await host.pauseVm(id, { fence, limit_ms: PAUSE_LIMIT_MS }, signal)
      await crashPoint('pause.saved')
      await finishPause(deps, row, generation)
    } catch (error) {
      if (!(error instanceof HostError) || UNDECIDED.has(error.code)) throw error
      if (OTHER_STATE.has(error.code)) await look(deps, row, error)
      else await failPause(deps, row, error)
    }
    await crashPoint('pause.done')
  },
})

const UNDECIDED: ReadonlySet<string> = new Set(['unreachable', 'fence_lost'])
const OTHER_STATE: ReadonlySet<string> = new Set(['not_found', 'wrong_state'])

export async function pauseSandbox(
  deps: Deps,
  id: string,
  { actor = 'user', reason = 'paused by the user' }: { actor?: EventActor; reason?: string } = {},
): Promise<SandboxRow> {
  const row = await deps.db.transaction().execute((tx) => beginPause(tx, id, actor, reason))
  await crashPoint('pause.begun')
  return row
}

/** For callers that have more to do in the transaction. */
export async function beginPause(tx: Tx, id: string, actor: EventActor, reason: string): Promise<SandboxRow> {
  const row = await beginMove(tx, id, 'pause', { actor, reason })
  await addPauseJob(tx, row)
  return row
}

export const addPauseJob = (tx: Tx, { id, fence }: Pick<SandboxRow, 'id' | 'fence'>): Promise<void> =>
  addJob(tx, pauseJob, { id, fence }, { key: operationKey('pausing', id, fence) })

async function finishPause(deps: Deps, row: SandboxRow, generation: number): Promise<void> {
  await deps.db.transaction().execute(async (tx) => {
    await endMove(tx, row.id, 'pauseDone', row.fence, { set: { generation } })
    await releasePlace(tx, row.id)
  })
}

async function failPause(deps: Deps, row: SandboxRow, cause: HostError): Promise<void> {
  deps.log.warn({ err: cause, sandbox: row.id }, 'a pause failed; the VM goes on')
  const reason = `could not be paused: ${reasonOf(cause)}`
  await deps.db.transaction().execute((tx) => endMove(tx, row.id, 'pauseFailed', row.fence, { reason }))
}

/** The host refuses because of the state that the VM is in: whatever that is. */
async function look(deps: Deps, row: SandboxRow, cause: HostError): Promise<void> {
  const vm = await findVm(deps, row)
  if (vm?.state === 'running') return failPause(deps, row, cause)
  if (vm?.state !== 'paused' || vm.generation === undefined) throw cause // For reconcile.ts, or on its way.
  return finishPause(deps, row, vm.generation)
}
