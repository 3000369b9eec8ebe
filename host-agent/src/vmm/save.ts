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
import type { Manifest, StoredObject } from '../snapshots/manifest.ts'
import type { Expected, Reservation } from '../snapshots/objects.ts'
import { diskFile, FDS, STATE_FILE } from './args.ts'
import { describeRequirements } from './compatibility.ts'
import { diskObject, layersBelowUnsaved, unsavedDisks } from './disk/chain.ts'
import { refreshActiveDisk } from './disk/live.ts'
import { workFolderOf } from './folders.ts'
import { isAlive } from './process.ts'
import type { Vmm } from './vmm.ts'

/** The content of a manifest that belongs to no sandbox yet. */
export type SavedVm = Omit<Manifest, 'sandbox' | 'generation'>
/** The reservation keeps the objects from being deleted. Release it once manifests refer to them, or to discard them. */
export type Draft = { saved: SavedVm; reservation: Reservation }

const MIB = 1024 * 1024
/** Tables of a qcow2 file, and clusters that were freed and not reused yet. */
const DISK_OVERHEAD_MIB = 1024
/** The device state is about 200 KB for one CPU. QEMU writes it and is not trusted. */
const STATE_MAX_BYTES = 64 * MIB

export async function saveVmm(
  deps: Deps,
  vm: { id: string; diskMib: number },
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
  const layers = layersBelowUnsaved(chain, findGenerationLayers(deps, vm.id, chain.generation))
  const reservation = deps.snapshots.reserve([
    ...[memoryId, stateId],
    ...layers,
    ...disks.map((disk) => diskObject(id, disk)),
  ])
  const expected = { uid, maxBytes: (vm.diskMib + DISK_OVERHEAD_MIB) * MIB }
  const sealDisks = () =>
    span('seal disks', () =>
      settleAll([
        ...layers.map((layer) => sealObject(deps, deps.snapshots.fileOf(layer), layer, expected)),
        ...disks.map((disk) => sealObject(deps, path.join(work, diskFile(disk)), diskObject(id, disk), expected)),
      ]),
    )
  try {
    const captured = settleAll([
      span('save memory', () => saveMemory(deps, vmm, memoryId, { sync: !onCaptured })),
      span('save devices', () => saveState(vmm, work)),
    ])
    const disk = await (onCaptured
      ? captured.then(onCaptured).then(sealDisks)
      : settleAll([sealDisks(), captured]).then(([sealed]) => sealed))
    const [memory] = await captured
    if (!isAlive(qemu)) throw new Error('QEMU exited while it was being saved')
    if (onCaptured) await deps.workers.run('sync', { file: deps.snapshots.fileOf(memoryId) })
    const stateExpected = { ...expected, maxBytes: STATE_MAX_BYTES }
    const state = await sealObject(deps, path.join(work, STATE_FILE), stateId, stateExpected)
    const saved: SavedVm = {
      format: 1,
      saved_at: new Date().toISOString(),
      needs: describeRequirements(deps, vmm.record),
      ...(vmm.record.agent && { agent: vmm.record.agent }),
      disk_mib: vm.diskMib,
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

function findGenerationLayers(deps: Deps, sandbox: string, generation: number | null): string[] | undefined {
  const found = generation === null ? undefined : deps.snapshots.find(sandbox, generation)
  return found?.manifest?.disk.map((layer) => layer.id)
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

/** Takes a file into the store and computes its checksums. An object that is in the store already has them. */
async function sealObject(deps: Deps, file: string, id: string, expected: Expected): Promise<StoredObject> {
  const known = deps.snapshots.findChecksums(id)
  if (known) return known
  await deps.snapshots.importFile(file, id, expected)
  return { id, ...(await deps.workers.run('seal', { file: deps.snapshots.fileOf(id) })) }
}

/** If one fails, the others have still ended before this rejects: nothing is written after a failure was reported. */
async function settleAll<T extends readonly unknown[]>(work: { [K in keyof T]: Promise<T[K]> }): Promise<T> {
  const results = await Promise.allSettled(work)
  for (const result of results) if (result.status === 'rejected') throw result.reason
  return results.map((result) => (result as PromiseFulfilledResult<unknown>).value) as unknown as T
}
