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
import { setTimeout as delay } from 'node:timers/promises'
import { crashPoint } from '@warren/kit/crash-point'
import type { EventActor, HostVmPaused } from '@warren/protocol'
import { recordCounts } from '../bandwidth/record-counts.ts'
import type { Tx } from '../db/connect.ts'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { HostError, statusReason } from '../hosts/host-error.ts'
import { addJob, defineJob } from '../jobs/job.ts'
import { findVm } from './decide-repair.ts'
import { beginMove, endMove } from './move.ts'
import { findOperation, Operation, operationKey } from './operation.ts'
import { releaseMemory } from './placement.ts'

/** The largest memory, written at the pace of a slow disk. */
const PAUSE_LIMIT_MS = 120_000
const BUSY_MS = 100
const BUSY_ATTEMPTS = 20

export const pauseJob = defineJob({
  name: 'pause-sandbox',
  payload: Operation,
  maxAttempts: 25,
  async run(deps, { id, fence }, { signal }) {
    const row = await findOperation(deps, id, 'pausing', fence)
    if (!row) return
    await crashPoint('pause.started')
    try {
      const saved = await save(deps, row, signal)
      await crashPoint('pause.saved')
      await finishPause(deps, row, saved)
    } catch (error) {
      if (!(error instanceof HostError) || UNDECIDED.has(error.code)) throw error
      await failPause(deps, row, error)
    }
    await crashPoint('pause.done')
  },
})

/** Not refusals: nobody answered, another operation is under way, or the VM is gone. */
const UNDECIDED: ReadonlySet<string> = new Set(['unreachable', 'fence_lost', 'not_found'])

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

async function finishPause(deps: Deps, row: SandboxRow, { generation, counts }: Saved): Promise<void> {
  await deps.db.transaction().execute(async (tx) => {
    await endMove(tx, row.id, 'pauseDone', row.fence, { set: { generation } })
    if (counts) await recordCounts(tx, [{ id: row.id, ...counts }])
    await releaseMemory(tx, row.id)
  })
}

async function failPause(deps: Deps, row: SandboxRow, cause: HostError): Promise<void> {
  deps.log.warn({ err: cause, sandbox: row.id }, 'a pause failed; the VM goes on')
  const reason = `could not be paused: ${statusReason(cause)}`
  await deps.db.transaction().execute((tx) => endMove(tx, row.id, 'pauseFailed', row.fence, { reason }))
}

type Saved = Pick<HostVmPaused, 'generation' | 'counts'>

/**
 * The generation. A VM that runs and is refused nevertheless is busy, for a moment (a live fork saves it as well).
 * One that does not run is saved already, or for reconcile.ts to find: then the job is tried again until it has.
 */
async function save(deps: Deps, row: SandboxRow, signal: AbortSignal): Promise<Saved> {
  for (let attempt = 1; ; attempt++) {
    try {
      const host = await deps.hosts.get(row.host_id)
      return await host.pauseVm(row.id, { fence: row.fence, limit_ms: PAUSE_LIMIT_MS }, signal)
    } catch (error) {
      if (!(error instanceof HostError) || error.code !== 'wrong_state') throw error
      const vm = await findVm(deps, row)
      if (vm?.state === 'paused' && vm.generation !== undefined) return { generation: vm.generation }
      if (vm?.state !== 'running') throw new HostError('unreachable', `the VM is ${vm?.state}`, { cause: error })
      if (attempt === BUSY_ATTEMPTS) throw error
      await delay(BUSY_MS, undefined, { signal })
    }
  }
}
