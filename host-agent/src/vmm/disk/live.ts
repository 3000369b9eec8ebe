/**
 * The disk chain of a VMM that exists: makes QEMU and the files in its work folder follow the pure functions of
 * chain.ts. The chain in the VMM's record changes only after QEMU has done its part.
 */
import { chmod, link, readdir, rm } from 'node:fs/promises'
import path from 'node:path'
import { crashPoint } from '@warren/kit/crash-point'
import { GuestGrowResponse } from '@warren/protocol'
import type { Deps } from '../../deps.ts'
import { callGuest } from '../../guest/call-guest.ts'
import { diskFile } from '../args.ts'
import { workFolderOf } from '../folders.ts'
import type { VmmRecord } from '../record.ts'
import type { Vmm } from '../vmm.ts'
import { freezeDisk, queryActiveDisk, replaceBacking, resizeActiveDisk } from './block-nodes.ts'
import { diskObject, freezeActive, freezeSaved, frozenDisks, mergeFrozen, replaceLayers } from './chain.ts'
import { chooseMerge, newMergedId, renderMerge } from './compact.ts'
import { createOverlay } from './qcow2/overlay.ts'
import { listLayersBelow, sealDisks } from './seal.ts'

/** Every disk file that QEMU has open makes its disk operations slower. */
const FREEZES_MAX = 8

/**
 * Asks QEMU which disk is active. A freeze whose reply came too late was reported as failed and has happened all the
 * same. QEMU executes its commands in order, so this reply includes it.
 */
export async function refreshActiveDisk({ qmp, record }: Vmm): Promise<void> {
  record.disk = { ...record.disk, active: await queryActiveDisk(qmp) }
}

/** Creates the file of the next disk, empty, so that freezing the active one takes no longer than QEMU needs. */
export async function prepareNextDisk(deps: Deps, vmm: Vmm, diskMib: number): Promise<void> {
  await refreshActiveDisk(vmm)
  const { record } = vmm
  const work = workFolderOf(deps, record.id)
  const { active } = record.disk
  const next = path.join(work, diskFile(active + 1))
  await rm(next, { force: true }) // Left over from a failed attempt; nothing was ever written to it.
  const backing = { file: path.join(work, diskFile(active)), format: 'qcow2' as const }
  await createOverlay(next, { sizeMib: diskMib, backing, owner: record.uid })
}

/** The active disk is frozen and the prepared one becomes active. For a live fork. */
export async function freezeForFork({ qmp, record }: Vmm): Promise<void> {
  await freezeDisk(qmp, record.disk.active)
  record.disk = freezeActive(record.disk)
}

/**
 * Makes the chain of a paused VMM usable again. The active disk belongs to the generation that was just saved and is
 * never written again, so it is frozen below a new one. Every few times the chain is shortened as well.
 */
export async function freezeForStandby(
  deps: Deps,
  vmm: Vmm,
  { sandbox, generation, diskMib }: { sandbox: string; generation: number; diskMib: number },
): Promise<void> {
  const { qmp, record } = vmm
  await prepareNextDisk(deps, vmm, diskMib)
  await freezeDisk(qmp, record.disk.active)
  record.disk = freezeSaved(record.disk, generation)
  if (record.disk.standbyFreezes >= FREEZES_MAX) await shortenChain(deps, sandbox, vmm)
}

/**
 * Replaces everything below the active disk, which is still empty, by the layers of the newest generation. They have the
 * same content in fewer files, since they are merged in the background (compact.ts).
 */
async function shortenChain(deps: Deps, sandbox: string, vmm: Vmm): Promise<void> {
  const { record } = vmm
  const { layers: oldLayers } = record.disk
  const layers = deps.snapshots.findNewestIntact(sandbox)?.manifest.disk.map((layer) => layer.id)
  if (!layers) throw new Error('the generation that was just saved is gone')
  // Retained in the same tick as they were looked up: a merge may replace them at any moment.
  deps.snapshots.retain(record.id, layers)
  const inUse = await replaceLayersInQemu(deps, vmm, layers)
  await removeUnusedDisks(deps, record.id, inUse)
  await deps.snapshots.release(
    record.id,
    oldLayers.filter((layer) => !layers.includes(layer)),
  )
  record.disk = replaceLayers(record.disk, layers)
}

/**
 * Called before a live fork. Every live fork freezes a disk; every few times those disks are merged into one layer, and
 * with them the layers below that are not much larger (compact.ts). The guest keeps running.
 *
 * Order of events: the merged layer is written; QEMU replaces what is below the active disk; `write` stores the record;
 * the old files are deleted. A host agent that is killed in between leaves a record that describes the same disk, because
 * the files that it names still exist.
 */
export async function mergeFrozenDisks(
  deps: Deps,
  vm: { id: string; diskMib: number },
  vmm: Vmm,
  write: () => Promise<void>,
): Promise<void> {
  await refreshActiveDisk(vmm)
  const { record } = vmm
  const { layers: oldLayers } = record.disk
  if (frozenDisks(record.disk).length < FREEZES_MAX) return
  const below = listLayersBelow(deps, vm.id, record.disk)
  const frozen = frozenDisks(record.disk).map((disk) => diskObject(record.id, disk))
  const mergedId = newMergedId()
  const reservation = deps.snapshots.reserve([...below, ...frozen, mergedId])
  try {
    const sealed = await sealDisks(deps, vm, record, below, frozenDisks(record.disk))
    const from = Math.min(chooseMerge(sealed.map(({ bytes }) => bytes)), below.length)
    await deps.workers.run('mergeFrozen', renderMerge(deps, sealed.slice(from), mergedId))
    const layers = [...below.slice(0, from), mergedId]
    const added = layers.filter((layer) => !oldLayers.includes(layer))
    deps.snapshots.retain(record.id, layers)
    const inUse = await replaceLayersInQemu(deps, vmm, layers).catch(async (error) => {
      // The chain is still the old one. If QEMU replaced it all the same, it uses the links in the work folder.
      await deps.snapshots.release(record.id, added)
      throw error
    })
    record.disk = mergeFrozen(record.disk, layers)
    await crashPoint('host.fork.merged')
    // The record is the first to name the merged layer, so the layer must be durable before it.
    await deps.snapshots.syncNames()
    await write()
    await removeUnusedDisks(deps, record.id, inUse)
    await deps.snapshots.release(
      record.id,
      oldLayers.filter((layer) => !layers.includes(layer)),
    )
  } finally {
    await reservation.release()
  }
}

/** Puts the active disk on top of `layers`, which have the content of what is below it. Returns the files in use. */
async function replaceLayersInQemu(deps: Deps, { qmp, record }: Vmm, layers: readonly string[]): Promise<Set<string>> {
  const { active } = record.disk
  const work = workFolderOf(deps, record.id)
  const files = layers.map((_, i) => `under-${active}-${i}.qcow2`)
  for (const [i, layer] of layers.entries()) {
    const file = deps.snapshots.fileOf(layer)
    // A merged layer is readable by root only. Opening it up is safe: only root can enter the folder it is in.
    await chmod(file, 0o444)
    await rm(path.join(work, files[i]!), { force: true }) // Left over from a failed attempt.
    await link(file, path.join(work, files[i]!))
  }
  await replaceBacking(qmp, active, files)
  return new Set([...files, diskFile(active)])
}

async function removeUnusedDisks(deps: Deps, vmmId: string, inUse: ReadonlySet<string>): Promise<void> {
  const work = workFolderOf(deps, vmmId)
  for (const name of await readdir(work)) {
    if (/^(disk|under)-/.test(name) && !inUse.has(name)) await rm(path.join(work, name))
  }
}

/** Grows a running VM's disk and the file system on it. A base has one disk size, so larger disks start this way. */
export async function growDisk(vmm: Vmm, diskMib: number, signal: AbortSignal): Promise<void> {
  await resizeActiveDisk(vmm.qmp, vmm.record.disk.active, diskMib)
  await growFileSystem(vmm, diskMib, signal)
}

/** Settles when the file system of the guest fills a disk of this size. The guest sees a new size a moment after QEMU set it. */
export async function growFileSystem(vmm: Vmm, diskMib: number, signal: AbortSignal): Promise<void> {
  const { session } = await vmm.channel(signal)
  const body = { device_bytes: diskMib * 1024 * 1024 }
  await callGuest(session, { method: 'POST', path: '/grow', body, response: GuestGrowResponse }, signal)
}

/**
 * The numbers of the disks in a VMM's folder, oldest first. For a VMM without a process: the record may be older than
 * the last freeze. The first ones are missing if the chain was shortened.
 */
export async function listDisks(deps: Deps, { id }: VmmRecord): Promise<number[]> {
  const names = await readdir(workFolderOf(deps, id)).catch(() => [])
  const numbers = names.flatMap((name) => /^disk-(\d+)\.qcow2$/.exec(name)?.[1] ?? []).map(Number)
  return numbers.sort((one, other) => one - other)
}
