/**
 * Creates a sandbox: a VMM from the pool or a new clone of the base, its address and network rules before the guest runs
 * any code of the user, its identity, its record. If anything fails, every step is undone and no record is left.
 *
 * If the caller disconnects, the create is aborted and undone. A repeated create with the same fence is refused.
 */

import { abortable } from '@warren/kit/abortable'
import { errorText } from '@warren/kit/error-text'
import { span } from '@warren/kit/span'
import type { HostVmCreateBody, HostVmCreated } from '@warren/protocol'
import type { Base } from '../bases/base.ts'
import { type EnsuredBase, ensureBase } from '../bases/ensure.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import { getImage } from '../images/get-image.ts'
import { Undo } from '../undo.ts'
import { applyIdentity } from '../vmm/apply-identity.ts'
import { growDisk } from '../vmm/disk/live.ts'
import { vmmFolderOf } from '../vmm/folders.ts'
import { chooseGuestAddress } from '../vmm/guest-agent.ts'
import { stopVmm } from '../vmm/release.ts'
import { startVmm } from '../vmm/start.ts'
import { newVmmId, type Vmm } from '../vmm/vmm.ts'
import { type Entries, runOperation } from './entries.ts'
import { moveVm, nextRecord } from './move.ts'
import { watchVm } from './watch.ts'

/** Time that must be left of a create's limit after its base was built: enough for a clone on a busy machine. */
const CLONE_NEEDS_MS = 5_000

type CreatedVm = { vmm: Vmm; response: HostVmCreated }
type Record = (vmm: Vmm) => Promise<void>

export async function createVm(
  deps: Deps,
  entries: Entries,
  request: HostVmCreateBody,
  callerDisconnected: AbortSignal,
): Promise<HostVmCreated> {
  const { id, fence, ip, disk_mib: diskMib } = request
  deps.volume.checkFloor('a new sandbox')
  entries.checkNew(request)
  const entry = entries.add({ state: 'creating', id, fence })
  return runOperation(entry, 'create', fence, async (aborted) => {
    const undo = new Undo()
    try {
      const signal = AbortSignal.any([callerDisconnected, aborted, AbortSignal.timeout(request.limit_ms)])
      // Written early so that the write overlaps the guest's start. Safe: nothing is acknowledged yet, and the control
      // plane deletes a sandbox whose create was never answered.
      const record: Record = (vmm) =>
        span('write record', () =>
          deps.registry.write(nextRecord(entry.record, 'createDone', { ip, diskMib, vmm: vmm.record })),
        )
      const { vmm, response } = await startVm(deps, request, record, undo, signal)
      moveVm(entry, 'createDone', { ip, diskMib, vmm: vmm.record })
      const { mounts } = watchVm(deps, entry, vmm, ip, request.network.revision)
      if (request.mounts) mounts?.setInBackground(request.mounts)
      return response
    } catch (error) {
      await undo.run(deps.log)
      await deps.registry.delete(id)
      entries.delete(id)
      if (error instanceof HostError) throw error
      throw new HostError('boot_failed', `failed to create ${id}: ${errorText(error)}`, { cause: error })
    }
  })
}

async function startVm(
  deps: Deps,
  request: HostVmCreateBody,
  record: Record,
  undo: Undo,
  signal: AbortSignal,
): Promise<CreatedVm> {
  const startedAt = performance.now()
  const { base, isBooted } = await span('find base', () => getBase(deps, request, signal))
  const remainingMs = request.limit_ms - (performance.now() - startedAt)
  if (remainingMs < CLONE_NEEDS_MS) throw baseNotReady(request)

  const pooled = deps.pool.take(base)
  if (pooled) {
    undo.add('VMM', () => stopVmm(deps, pooled.record, pooled))
    await settleBoth(setUp(deps, pooled, base, request, signal), record(pooled))
  }
  const vmm = pooled ?? (await deps.restoreLimiter(() => startClone(deps, base, request, record, undo, signal), signal))
  const spawn_ms = Math.round((performance.now() - startedAt) * 10) / 10
  return { vmm, response: { spawn_ms, how: isBooted ? 'boot' : pooled ? 'pool' : 'clone' } }
}

async function getBase(deps: Deps, request: HostVmCreateBody, signal: AbortSignal): Promise<EnsuredBase> {
  const image = await getImage(deps, request)
  const shape = { vcpu: request.vcpu, mem_mib: request.mem_mib }
  // The build continues: the base serves the next create.
  return abortable(ensureBase(deps, image, shape, request.disk_mib), signal).catch((error) => {
    throw (error as Error).name === 'TimeoutError' ? baseNotReady(request) : error
  })
}

/** The build continues, so a later create finds the base ready. */
const baseNotReady = ({ image }: HostVmCreateBody): HostError =>
  new HostError('image_not_ready', `${image} is being booted for its first sandbox of this shape`)

async function startClone(
  deps: Deps,
  base: Base,
  request: HostVmCreateBody,
  record: Record,
  undo: Undo,
  signal: AbortSignal,
): Promise<Vmm> {
  signal.throwIfAborted()
  const id = newVmmId()
  const start = { from: 'base' } as const
  const folder = vmmFolderOf(deps, id)
  const plan = { id, folder, base, start, layers: [], diskMib: base.diskMib, outlivesHostAgent: true }
  const vmm = await startVmm(deps, plan, undo, signal)
  await settleBoth(setUp(deps, vmm, base, request, signal), record(vmm))
  return vmm
}

/** If one fails, the other has ended before anything is undone. */
async function settleBoth(one: Promise<void>, other: Promise<void>): Promise<void> {
  for (const result of await Promise.allSettled([one, other])) if (result.status === 'rejected') throw result.reason
}

async function setUp(
  deps: Deps,
  vmm: Vmm,
  base: Base,
  { ip, network, hostname, envs, ssh_pubkeys, disk_mib, cpu_quota_pct }: HostVmCreateBody,
  signal: AbortSignal,
): Promise<void> {
  const guestAddress = chooseGuestAddress(vmm.record.agent, ip)
  await span('assign network', () => deps.network.slots.assign(vmm.record.slot, ip, network, guestAddress))
  await vmm.resumeCpus()
  if (disk_mib > base.diskMib) await span('grow disk', () => growDisk(vmm, disk_mib, signal))
  await applyIdentity(vmm, { address: ip, hostname, envs, ssh_pubkeys }, { isNew: true }, signal)
  // Last: under a quota of a quarter of a core the start would take four times as long.
  await span('limit CPU', () => deps.cgroups.limitCpu(vmm.record.id, cpu_quota_pct))
}
