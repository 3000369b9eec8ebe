/**
 * Starts the VM of a saved sandbox again. Resume and fork share it.
 *
 * An error that may be transient is retried up to ATTEMPTS times with a short delay. An error that a retry cannot fix
 * fails the restore at once: the snapshot is damaged (the host has set it aside and reports what the next resume would
 * use), missing, or incompatible with the host.
 *
 * A host that does not answer may still complete the restore, so the error is thrown and the job runs again, until
 * RESTORE_RETRY_LIMIT_S after the operation began. If the host completes it after that, reconcile.ts finds the VM running and
 * pauses it.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { span } from '@warren/kit/span'
import {
  findCpuQuotaPct,
  type HostVm,
  type HostVmMounts,
  type HostVmNetwork,
  type HostVmResumed,
} from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { findHostMounts, rearmMounts } from '../disks/host-mounts.ts'
import { clearUnsaved } from '../disks/record-unsaved.ts'
import { HostError, type HostErrorCode, statusReason } from '../hosts/host-error.ts'
import { getHostNetwork, pushNetworkIfChanged } from '../networks/host-network.ts'
import { getEnvs } from './envs.ts'
import { findVm } from './find-vm.ts'
import { endMove } from './move.ts'
import { rollBack } from './rollback.ts'

const ATTEMPTS = 3
const RETRY_DELAY_MS = 200
/**
 * How long an operation is retried while its host does not answer, from the beginning of the operation. A request that
 * waits for the resume has a separate limit (WAIT_LIMIT_MS in guest/ensure-running.ts): the operation continues after
 * the request has failed.
 */
export const RESTORE_RETRY_LIMIT_S = 60

export type RestoreResult =
  /** `note` tells the user that the VM did not continue from its latest state, or what it cannot do. */
  | { outcome: 'restored'; generation: number | null; note: string | undefined; hasMounts: boolean }
  /** The sandbox keeps what it has saved; another resume may succeed. */
  | { outcome: 'failed'; reason: string }
  /** The guest of a fork did not confirm its new identity. Two sandboxes with one identity must never run. */
  | { outcome: 'identity_failed'; reason: string }

/** Throws when the outcome is not known yet; the caller's job then runs again. */
export async function restoreVm(deps: Deps, row: SandboxRow, signal: AbortSignal): Promise<RestoreResult> {
  try {
    const { resumed, hasMounts } = await span('host: resume VM', () => resumeWithRetries(deps, row, signal))
    return {
      outcome: 'restored',
      generation: resumed.generation ?? row.generation,
      note: describeDifference(row, resumed),
      hasMounts,
    }
  } catch (error) {
    if (!(error instanceof HostError) || error.code === 'fence_lost') throw error
    if (error.code === 'unreachable' && !isOverdue(deps, row)) throw error
    deps.log.warn({ err: error, sandbox: row.id }, 'failed to resume sandbox')
    return { outcome: error.code === 'identity_failed' ? 'identity_failed' : 'failed', reason: statusReason(error) }
  }
}

type RestoreMoves = { done: 'resumeDone' | 'forkDone'; failed: 'resumeFailed' | 'forkFailed' }

/** Ends the operation with the result, in one transaction. */
export async function commitRestore(
  deps: Deps,
  row: SandboxRow,
  result: RestoreResult,
  moves: RestoreMoves,
): Promise<void> {
  switch (result.outcome) {
    case 'restored': {
      const { note: reason, generation, hasMounts } = result
      await deps.db.transaction().execute(async (tx) => {
        await endMove(tx, row.id, moves.done, row.fence, { reason, set: { generation } })
        if (hasMounts) await clearUnsaved(tx, row.id)
      })
      return
    }
    case 'failed':
      await deps.db.transaction().execute((tx) => {
        const reason = `could not be resumed: ${result.reason}`
        return endMove(tx, row.id, moves.failed, row.fence, { reason, releasesMemory: true })
      })
      return
    case 'identity_failed':
      await rollBack(
        deps,
        row,
        'forkAbandoned',
        `the guest of the fork did not confirm its new identity: ${result.reason}`,
      )
  }
}

/** Errors that another attempt cannot fix. */
const PERMANENT: ReadonlySet<HostErrorCode> = new Set([
  'not_found',
  'invalid',
  'snapshot_damaged',
  'snapshot_missing',
  'snapshot_incompatible',
  'identity_failed',
])

/** Errors that say nothing about the restore: the host did not answer, or another operation has taken over. */
const UNDECIDED: ReadonlySet<HostErrorCode> = new Set(['unreachable', 'fence_lost'])

const IN_TRANSITION: ReadonlySet<HostVm['state']> = new Set(['pausing', 'resuming'])

type Resumed = { resumed: HostVmResumed; hasMounts: boolean }

async function resumeWithRetries(deps: Deps, row: SandboxRow, signal: AbortSignal): Promise<Resumed> {
  let hasMounts = false
  const envs = await getEnvs(deps, deps.db, row.id)
  for (let attempt = 1; ; attempt++) {
    try {
      const host = await deps.hosts.get(row.host_id)
      const network = await getHostNetwork(deps, row.id)
      const mounts = await findHostMounts(deps, row.id)
      hasMounts = mounts !== undefined
      if (hasMounts) await rearmMounts(deps, row.id)
      const resumed = await host.resumeVm(row.id, resumeBodyOf(deps, row, envs, network, mounts), signal)
      await pushNetworkIfChanged(deps, row, network.revision)
      return { resumed, hasMounts }
    } catch (error) {
      if (!(error instanceof HostError)) throw error
      const vm = error.code === 'wrong_state' ? await findVm(deps, row) : undefined
      // An earlier operation, given up before the host completed it, has already started the VM.
      if (vm?.state === 'running') {
        return { resumed: { generation: vm.generation, took_ms: 0, how: 'restore' }, hasMounts }
      }
      // Such an operation is still in progress. Wait for it as for a host that does not answer.
      if (vm && IN_TRANSITION.has(vm.state)) {
        throw new HostError('unreachable', `the VM is ${vm.state}`, { cause: error })
      }
      if (PERMANENT.has(error.code) || UNDECIDED.has(error.code) || attempt === ATTEMPTS) throw error
      deps.log.warn({ err: error, sandbox: row.id, attempt }, 'failed to resume sandbox, retrying')
      await delay(RETRY_DELAY_MS * attempt, undefined, { signal })
    }
  }
}

const resumeBodyOf = (
  deps: Deps,
  row: SandboxRow,
  envs: Record<string, string>,
  network: HostVmNetwork,
  mounts: HostVmMounts | undefined,
) => ({
  fence: row.fence,
  cpu_quota_pct: findCpuQuotaPct(row),
  ip: row.ip!, // Assigned when the sandbox was placed, and kept until it is destroyed.
  hostname: row.name,
  envs,
  ssh_pubkeys: row.ssh_pubkeys,
  network,
  ...(mounts ? { mounts } : {}),
  limit_ms: deps.config.bootLimitSeconds * 1000,
})

const isOverdue = (deps: Deps, row: SandboxRow): boolean =>
  deps.now().getTime() - row.status_since.getTime() > RESTORE_RETRY_LIMIT_S * 1000

/** For the user, in `status_reason`. */
function describeDifference(row: SandboxRow, resumed: HostVmResumed): string | undefined {
  const { limits = [] } = resumed
  const older = limits.length === 0 ? [] : [`resumed with an older guest agent: ${limits.join('; ')}`]
  const parts = [describeOlder(row, resumed) ?? [], older].flat()
  return parts.length === 0 ? undefined : parts.join('. ')
}

/** A resume is expected to continue from the latest state. If it did not, `status_reason` tells the user. */
function describeOlder(row: SandboxRow, { generation, saved_at }: HostVmResumed): string | undefined {
  if (generation === undefined) return 'booted anew from its disk'
  if (row.generation === null || generation >= row.generation) return undefined
  return `resumed from older generation ${generation}${saved_at ? `, saved at ${saved_at}` : ''}`
}
