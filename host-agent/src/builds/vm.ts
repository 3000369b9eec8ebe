/**
 * The VM in which the steps of a build run. It belongs to no sandbox and is in no record: if the host agent is killed, the VM
 * dies with it, or the next host agent removes it as a stray.
 *
 * Without cached steps it is a clone of the base. Otherwise a kernel is booted on the cached layers, because the memory of the
 * base matches only the disk of the base.
 */
import { errorText } from '@warren/kit/error-text'
import { GUEST_PROTOCOL, GuestFrozen, type HostBuildBody } from '@warren/protocol'
import { Type } from 'typebox'
import type { Base } from '../bases/base.ts'
import type { Deps } from '../deps.ts'
import { callGuest } from '../guest/call-guest.ts'
import { Undo } from '../undo.ts'
import { applyIdentity } from '../vmm/apply-identity.ts'
import { diskObject } from '../vmm/disk/chain.ts'
import { freezeForFork, growDisk, prepareNextDisk } from '../vmm/disk/live.ts'
import { sealDisks } from '../vmm/disk/seal.ts'
import { vmmFolderOf } from '../vmm/folders.ts'
import { startVmm } from '../vmm/start.ts'
import { newVmmId, type Vmm } from '../vmm/vmm.ts'
import { BuildFailure } from './failure.ts'

const HOSTNAME = 'build'

export type BuildVm = {
  vmm: Vmm
  /** Aborted when the VM exits, with the reason. */
  died: AbortSignal
  /** Everything that was written so far as a separate layer, an object of the snapshot store. */
  takeLayer(signal: AbortSignal): Promise<TakenLayer>
  stop(): Promise<void>
}

/** Reserved until `release`. */
export type TakenLayer = { object: string; bytes: number; usedBytes: number; release(): Promise<void> }

export async function startBuildVm(
  deps: Deps,
  { base, layers, body }: { base: Base; layers: readonly string[]; body: HostBuildBody },
  signal: AbortSignal,
): Promise<BuildVm> {
  const undo = new Undo()
  try {
    const diskMib = Math.max(body.disk_mib, base.diskMib)
    const vmm = await deps.restoreLimiter(() => start(deps, { base, layers, body, diskMib, undo }, signal), signal)
    const died = new AbortController()
    const guarded = deps.diskGuard.add(vmm)
    undo.add('disk guard', guarded.remove)
    void vmm.untilExit(deps).then((reason) => {
      died.abort(new BuildFailure('vm_died', `the VM of the build ended: ${reason}`))
    })
    let isStopped: Promise<void> | undefined
    return {
      vmm,
      died: died.signal,
      takeLayer: (until) => takeLayer(deps, vmm, diskMib, until),
      stop: () => (isStopped ??= undo.run(deps.log)),
    }
  } catch (error) {
    await undo.run(deps.log)
    throw error
  }
}

type StartPlan = { base: Base; layers: readonly string[]; body: HostBuildBody; diskMib: number; undo: Undo }

async function start(deps: Deps, plan: StartPlan, signal: AbortSignal): Promise<Vmm> {
  const { base, layers, body, diskMib, undo } = plan
  const id = newVmmId()
  const isClone = layers.length === 0
  const vmm = await startVmm(
    deps,
    {
      ...{ id, folder: vmmFolderOf(deps, id), base, layers: [...layers] },
      start: isClone ? { from: 'base' } : { from: 'disk' },
      diskMib: isClone ? base.diskMib : diskMib,
      outlivesHostAgent: true,
    },
    undo,
    signal,
  )
  const protocol = vmm.record.agent?.protocol ?? GUEST_PROTOCOL.FIRST
  if (protocol < GUEST_PROTOCOL.BUILDS) {
    throw new Error(`its guest agent has protocol ${protocol} and cannot build; builds need ${GUEST_PROTOCOL.BUILDS}`)
  }
  await deps.network.slots.assign(vmm.record.slot, body.ip, body.network, body.ip)
  await vmm.resumeCpus()
  const exited = vmm.qmp.closed.then(() => {
    throw new BuildFailure('vm_died', 'the VM of the build ended while it was starting')
  })
  exited.catch(() => {}) // Of no interest once it has started.
  const identity = { address: body.ip, hostname: HOSTNAME, envs: {}, ...(isClone ? {} : deps.operatorSettings) }
  await Promise.race([applyIdentity(vmm, identity, { isNew: true }, signal), exited])
  if (isClone && diskMib > base.diskMib) await growDisk(vmm, diskMib, signal)
  await deps.cgroups.limitCpu(id, body.cpu_quota_pct)
  return vmm
}

/**
 * The file system is frozen while QEMU starts the next disk, so the layer needs no recovery when it is used. The guest thaws
 * after half a minute in any case.
 */
async function takeLayer(deps: Deps, vmm: Vmm, diskMib: number, signal: AbortSignal): Promise<TakenLayer> {
  await prepareNextDisk(deps, vmm, diskMib)
  const disk = vmm.record.disk.active
  const object = diskObject(vmm.record.id, disk)
  const reservation = deps.snapshots.reserve([object])
  try {
    const { session } = await vmm.channel(signal)
    const freeze = { method: 'POST', path: '/freeze', response: GuestFrozen } as const
    const { used_bytes: usedBytes } = await callGuest(session, freeze, signal)
    await freezeForFork(vmm)
    await callGuest(session, { method: 'POST', path: '/thaw', response: Type.Object({}) }, signal)
    const [sealed] = await sealDisks(deps, { diskMib }, vmm.record, [], [disk])
    await deps.snapshots.syncNames()
    return { object, bytes: sealed!.bytes, usedBytes, release: () => reservation.release() }
  } catch (error) {
    await reservation.release()
    throw new Error(`failed to save the result of a step: ${errorText(error)}`, { cause: error })
  }
}
