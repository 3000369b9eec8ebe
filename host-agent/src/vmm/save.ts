/**
 * Saves a VM whose CPUs are paused: the device state, the pages that differ from its base, its disk. When `saveVmm`
 * settles, all of it is in the store, on disk and checksummed, but belongs to no sandbox until a manifest names it.
 *
 * A pause saves in parallel: one thread reads the memory while another computes the checksums of the disk. In a live fork
 * the source's CPUs must be paused as briefly as possible: memory and devices are captured first, then `onCaptured`
 * freezes the disk and resumes the CPUs, and only then are checksums computed and files flushed.
 */
import { rm } from 'node:fs/promises'
import path from 'node:path'
import { span } from '@warren/kit/span'
import type { Deps } from '../deps.ts'
import type { Manifest } from '../snapshots/manifest.ts'
import type { Reservation } from '../snapshots/objects.ts'
import { waitForAll } from '../wait-for-all.ts'
import { FDS, STATE_FILE } from './args.ts'
import { describeRequirements } from './compatibility.ts'
import { diskObject, unsavedDisks } from './disk/chain.ts'
import { refreshActiveDisk } from './disk/live.ts'
import { listLayersBelow, sealDisks, sealObject } from './disk/seal.ts'
import { workFolderOf } from './folders.ts'
import { isAlive } from './process.ts'
import type { Vmm } from './vmm.ts'

/** The content of a manifest that belongs to no sandbox yet. */
export type SavedVm = Omit<Manifest, 'sandbox' | 'generation'>
/** The reservation keeps the objects from being deleted. Release it once manifests refer to them, or to discard them. */
export type Draft = { saved: SavedVm; reservation: Reservation }

const MIB = 1024 * 1024
/** The device state is about 200 KB for one CPU. QEMU writes it and is not trusted. */
const STATE_MAX_BYTES = 64 * MIB

export async function saveVmm(
  deps: Deps,
  vm: { id: string; diskMib: number; growPending: boolean },
  vmm: Vmm,
  onCaptured?: () => Promise<void>,
): Promise<Draft> {
  if (!onCaptured) await refreshActiveDisk(vmm) // A live fork has just done so, before it paused the CPUs.
  const { id, uid, disk: chain, qemu, memoryOver } = vmm.record
  const stamp = Date.now().toString(36)
  const memoryId = `${id}-m${stamp}`
  const stateId = `${id}-s${stamp}`
  const work = workFolderOf(deps, id)
  const disks = unsavedDisks(chain)
  const layers = listLayersBelow(deps, vm.id, chain)
  const reservation = deps.snapshots.reserve([
    ...[memoryId, stateId],
    ...layers,
    ...disks.map((disk) => diskObject(id, disk)),
  ])
  const sealAll = () => span('seal disks', () => sealDisks(deps, vm, vmm.record, layers, disks))
  try {
    const captured = waitForAll([
      span('save memory', () => saveMemory(deps, vmm, memoryId, { sync: !onCaptured })),
      span('save devices', () => saveState(vmm, work)),
    ])
    const disk = await (onCaptured
      ? captured.then(onCaptured).then(sealAll)
      : waitForAll([sealAll(), captured]).then(([sealed]) => sealed))
    const [memory] = await captured
    if (!isAlive(qemu)) throw new Error('QEMU exited while it was being saved')
    if (onCaptured) await deps.workers.run('sync', { file: deps.snapshots.fileOf(memoryId) })
    const stateExpected = { uid, maxBytes: STATE_MAX_BYTES }
    const state = await sealObject(deps, path.join(work, STATE_FILE), stateId, stateExpected)
    const saved: SavedVm = {
      format: 1,
      saved_at: new Date().toISOString(),
      needs: describeRequirements(deps, vmm.record),
      ...(vmm.record.agent && { agent: vmm.record.agent }),
      disk_mib: vm.diskMib,
      ...(vm.growPending && { grow_pending: true }),
      memory: { id: memoryId, over: memoryOver, ...memory },
      state,
      disk,
    }
    return { saved, reservation }
  } catch (error) {
    await reservation.release()
    throw error
  }
}

function saveMemory(deps: Deps, { record }: Vmm, memoryId: string, { sync }: { sync: boolean }) {
  return deps.workers.run('saveMemory', {
    pid: record.qemu.pid,
    fd: FDS.ram,
    memBytes: record.shape.mem_mib * MIB,
    file: deps.snapshots.fileOf(memoryId),
    sync,
  })
}

async function saveState(vmm: Vmm, work: string): Promise<void> {
  await rm(path.join(work, STATE_FILE), { force: true })
  await vmm.saveDevices()
}
