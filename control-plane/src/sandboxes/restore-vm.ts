/**
 * The VM of a saved sandbox, running again: what resume and fork share.
 *
 * Failures that may pass are tried ATTEMPTS times, with a short pause between. What no repetition mends is told at
 * once: a damaged state (the host has set it aside, and says what the next resume would take), none at all, one for
 * another machine. A host that is silent is waited for: the job is tried again until SILENCE_LIMIT_S after the
 * beginning. It may finish after all when we have given up; reconcile.ts then saves what it finds running.
 *
 * A child whose guest does not confirm its new identity is never served: its VM is deleted and it ends in `failed`.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { crashPoint } from '@warren/kit/crash-point'
import { findShape, type HostVm, type HostVmNetwork, type HostVmResumed } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { HostError, type HostErrorCode, statusReason } from '../hosts/host-error.ts'
import { getHostNetwork, pushNetworkIfChanged } from '../networks/host-network.ts'
import { findVm } from './decide-repair.ts'
import { getEnvs } from './envs.ts'
import { endMove } from './move.ts'
import { releaseMemory } from './placement.ts'
import { rollBack } from './rollback.ts'

const ATTEMPTS = 3
const PAUSE_MS = 200
export const SILENCE_LIMIT_S = 60

type Ways = { done: 'resumeDone' | 'forkDone'; failed: 'resumeFailed' | 'forkFailed'; crash: string }

const HOPELESS: ReadonlySet<HostErrorCode> = new Set([
  'not_found',
  'invalid',
  'snapshot_damaged',
  'snapshot_missing',
  'snapshot_incompatible',
])

export async function restoreVm(deps: Deps, row: SandboxRow, ways: Ways, signal: AbortSignal): Promise<void> {
  try {
    const resumed = await tryResume(deps, row, signal)
    await crashPoint(ways.crash)
    const { generation = row.generation } = resumed
    await deps.db
      .transaction()
      .execute((tx) => endMove(tx, row.id, ways.done, row.fence, { reason: older(row, resumed), set: { generation } }))
  } catch (error) {
    if (!(error instanceof HostError) || error.code === 'fence_lost') throw error
    if (error.code === 'unreachable' && !isOverdue(deps, row)) throw error
    deps.log.warn({ err: error, sandbox: row.id }, 'a sandbox could not be resumed')
    if (error.code === 'identity_failed') {
      await rollBack(deps, row, 'forkAbandoned', `the copy could not be given its own identity: ${statusReason(error)}`)
      return
    }
    await deps.db.transaction().execute(async (tx) => {
      await endMove(tx, row.id, ways.failed, row.fence, { reason: `could not be resumed: ${statusReason(error)}` })
      await releaseMemory(tx, row.id)
    })
  }
}

async function tryResume(deps: Deps, row: SandboxRow, signal: AbortSignal): Promise<HostVmResumed> {
  const envs = await getEnvs(deps.db, row.id)
  for (let attempt = 1; ; attempt++) {
    try {
      const host = await deps.hosts.get(row.host_id)
      const network = await getHostNetwork(deps, row.id)
      const resumed = await host.resumeVm(row.id, bodyOf(deps, row, envs, network), signal)
      await pushNetworkIfChanged(deps, row, network.revision)
      return resumed
    } catch (error) {
      if (!(error instanceof HostError)) throw error
      const found = error.code === 'wrong_state' ? await findVm(deps, row) : undefined
      // Brought up by an operation that was given up before it ended: it is all there.
      if (found?.state === 'running') return { generation: found.generation, took_ms: 0, how: 'restore' }
      // Such an operation is still under way: waited for, like a host that is silent.
      if (found && BUSY.has(found.state))
        throw new HostError('unreachable', `the VM is ${found.state}`, { cause: error })
      const fatal = HOPELESS.has(error.code) || OTHERS.has(error.code)
      if (fatal || attempt === ATTEMPTS) throw error
      deps.log.warn({ err: error, sandbox: row.id, attempt }, 'a resume failed, trying again')
      await delay(PAUSE_MS * attempt, undefined, { signal })
    }
  }
}

const BUSY: ReadonlySet<HostVm['state']> = new Set(['pausing', 'resuming'])

/** Not attempts of ours: nobody answered, another operation is under way, or the child must not be. */
const OTHERS: ReadonlySet<HostErrorCode> = new Set(['unreachable', 'fence_lost', 'identity_failed'])

const bodyOf = (deps: Deps, row: SandboxRow, envs: Record<string, string>, network: HostVmNetwork) => ({
  fence: row.fence,
  cpu_quota_pct: findShape(row.shape)?.cpu_quota_pct ?? row.vcpu * 100,
  ip: row.ip!, // Every sandbox that was placed has one, and keeps it.
  hostname: row.name,
  envs,
  ssh_pubkeys: row.ssh_pubkeys,
  network,
  limit_ms: deps.config.bootLimitSeconds * 1000,
})

const isOverdue = (deps: Deps, row: SandboxRow): boolean =>
  deps.now().getTime() - row.status_since.getTime() > SILENCE_LIMIT_S * 1000

/** Going on from an older state, or from none, is not what was asked for: it is said. */
function older(row: SandboxRow, { generation, saved_at }: HostVmResumed): string | undefined {
  if (generation === undefined) return 'booted anew from its disk'
  if (row.generation === null || generation >= row.generation) return undefined
  return `went on from generation ${generation}${saved_at ? `, saved at ${saved_at}` : ''}`
}
