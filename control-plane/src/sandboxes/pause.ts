/**
 * Pause, in this order:
 *
 *   1. One transaction moves the row to `pausing` with a new fence and adds the job.
 *   2. The job asks the host, which answers once memory, disk and device state are durable.
 *   3. One transaction ends the operation: `paused`, the generation, the billing interval, and the memory released. The
 *      address stays with the sandbox.
 *
 * A host that reports an error has saved nothing and the VM keeps running: the row returns to `running` with the
 * reason. A host that does not answer may have paused the VM or not, so the job asks again with the same fence until it
 * learns which; a host does nothing twice for one fence. A VM that no longer exists is handled by reconcile.ts.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { crashPoint } from '@warren/kit/crash-point'
import { span } from '@warren/kit/span'
import type { EventActor, HostVmPaused } from '@warren/protocol'
import { recordCounts } from '../bandwidth/record-counts.ts'
import type { Tx } from '../db/connect.ts'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { recordUnsaved } from '../disks/record-unsaved.ts'
import { HostError, type HostErrorCode, statusReason } from '../hosts/host-error.ts'
import { addJob, defineJob } from '../jobs/job.ts'
import { findVm } from './find-vm.ts'
import { beginMove, endMove } from './move.ts'
import { findOperation, Operation, operationKey } from './operation.ts'
import { releaseMemory } from './reservations.ts'

/** Enough to write the memory of the largest shape to a slow disk. */
const PAUSE_LIMIT_MS = 120_000
const BUSY_RETRY_MS = 100
const BUSY_ATTEMPTS = 20

export const pauseJob = defineJob({
  name: 'pause-sandbox',
  payload: Operation,
  maxAttempts: 25,
  key: (operation) => operationKey('pausing', operation),
  async run(deps, operation, { signal }) {
    const row = await findOperation(deps, 'pausing', operation)
    if (!row) return
    await crashPoint('pause.started')
    try {
      const saved = await span('host: pause VM', () => pauseVm(deps, row, signal))
      await crashPoint('pause.saved')
      await span('commit', () => finishPause(deps, row, saved))
    } catch (error) {
      if (!(error instanceof HostError) || UNDECIDED.has(error.code)) throw error
      await failPause(deps, row, error)
    }
    await crashPoint('pause.done')
  },
})

/**
 * Errors that do not say that the VM keeps running: the host did not answer, another operation has taken over, or the
 * VM is gone. The job is retried.
 */
const UNDECIDED: ReadonlySet<HostErrorCode> = new Set(['unreachable', 'fence_lost', 'not_found'])

export async function pauseSandbox(
  deps: Deps,
  id: string,
  { actor = 'user', reason = 'paused by the user' }: { actor?: EventActor; reason?: string } = {},
): Promise<SandboxRow> {
  const row = await deps.db.transaction().execute((tx) => beginPause(tx, id, actor, reason))
  await crashPoint('pause.begun')
  return row
}

/** The first step alone, for callers that have more to do in its transaction. */
export async function beginPause(tx: Tx, id: string, actor: EventActor, reason: string): Promise<SandboxRow> {
  const row = await beginMove(tx, id, 'pause', { actor, reason })
  await addJob(tx, pauseJob, { id: row.id, fence: row.fence })
  return row
}

type SavedVm = Pick<HostVmPaused, 'generation' | 'counts' | 'unsaved_mounts'>

async function finishPause(deps: Deps, row: SandboxRow, saved: SavedVm): Promise<void> {
  const { generation, counts, unsaved_mounts = [] } = saved
  await deps.db.transaction().execute(async (tx) => {
    await endMove(tx, row.id, 'pauseDone', row.fence, { set: { generation } })
    if (counts) await recordCounts(tx, [{ id: row.id, ...counts }])
    if (unsaved_mounts.length > 0) await recordUnsaved(tx, row.id, unsaved_mounts)
    await releaseMemory(tx, row.id)
  })
}

async function failPause(deps: Deps, row: SandboxRow, cause: HostError): Promise<void> {
  deps.log.warn({ err: cause, sandbox: row.id }, 'failed to pause sandbox, its VM keeps running')
  const reason = `could not be paused: ${statusReason(cause)}`
  await deps.db.transaction().execute((tx) => endMove(tx, row.id, 'pauseFailed', row.fence, { reason }))
}

/**
 * Asks the host to pause the VM. When the host reports `wrong_state`, its list of VMs tells why: a VM that runs is busy
 * for a moment (a live fork is saving it), so the request is repeated. A paused VM is done. In every other state
 * the job is retried until the host or reconcile.ts has decided.
 */
async function pauseVm(deps: Deps, row: SandboxRow, signal: AbortSignal): Promise<SavedVm> {
  for (let attempt = 1; ; attempt++) {
    try {
      const host = await deps.hosts.get(row.host_id)
      return await host.pauseVm(row.id, { fence: row.fence, limit_ms: PAUSE_LIMIT_MS }, signal)
    } catch (error) {
      if (!(error instanceof HostError) || error.code !== 'wrong_state') throw error
      const vm = await findVm(deps, row)
      if (vm?.state === 'paused' && vm.generation !== undefined) return { generation: vm.generation }
      if (vm?.state !== 'running') {
        throw new HostError('unreachable', `the VM is ${vm?.state ?? 'not on its host'}`, { cause: error })
      }
      if (attempt === BUSY_ATTEMPTS) throw error
      await delay(BUSY_RETRY_MS, undefined, { signal })
    }
  }
}
