/**
 * Saving a body that stands still: device state, the pages that differ from its base, its disk. All of it is on disk,
 * checksummed and in the store when this is done, and belongs to nobody until a manifest names it.
 *
 * A pause does all of it at once: the memory is read by one thread while another sums up the disk. A live fork wants
 * its source to stand still as shortly as can be: memory and devices first, then the disk is frozen and the source goes
 * on (`goOn`), and only then is anything summed up or waited for to reach the disk.
 */
import { rm } from 'node:fs/promises'
import path from 'node:path'
import type { Deps } from '../deps.ts'
import type { Manifest, StoredObject } from '../snapshots/manifest.ts'
import type { Expected, Reservation } from '../snapshots/objects.ts'
import type { VmRecord } from '../vms/registry.ts'
import { diskFile, FDS, STATE_FILE } from './args.ts'
import { describeNeeds } from './compatibility.ts'
import { isAlive } from './process.ts'
import { type Vmm, workFolderOf } from './vmm.ts'

export type Saved = Omit<Manifest, 'sandbox' | 'generation'>
/** The objects stay as long as they are reserved: until a manifest names them, or nobody will. */
export type Draft = { saved: Saved; reservation: Reservation }

export async function saveVmm(
  deps: Deps,
  record: VmRecord,
  body: Vmm,
  goOn?: (newestDisk: number) => Promise<void>,
): Promise<Draft> {
  const { id, over, qemu } = body.record
  const stamp = Date.now().toString(36)
  const memoryId = `${id}-m${stamp}`
  const stateId = `${id}-s${stamp}`
  const work = workFolderOf(deps, id)
  const newestDisk = await body.newestDisk()
  const firstDisk = body.record.firstDisk ?? 0
  const ownDisks = Array.from({ length: newestDisk + 1 - firstDisk }, (_, i) => firstDisk + i)
  const layers = layersUnder(deps, record, body)
  const reservation = deps.snapshots.reserve([
    ...[memoryId, stateId],
    ...layers,
    ...ownDisks.map((n) => diskObject(id, n)),
  ])
  const expected = { uid: body.record.uid, maxBytes: (record.disk_mib + DISK_OVERHEAD_MIB) * MIB }
  const sealDisks = () =>
    settleAll([
      ...layers.map((layer) => sealObject(deps, deps.snapshots.fileOf(layer), layer, expected)),
      ...ownDisks.map((n) => sealObject(deps, path.join(work, diskFile(n)), diskObject(id, n), expected)),
    ])
  try {
    const captured = settleAll([saveMemory(deps, body, memoryId, !goOn), saveState(body, work)])
    const disks = goOn
      ? captured.then(() => goOn(newestDisk)).then(sealDisks)
      : settleAll([sealDisks(), captured]).then(([sealed]) => sealed)
    const disk = await disks
    const [memory] = await captured
    if (!isAlive(qemu)) throw new Error('its QEMU ended while it was saved')
    if (goOn) await deps.workers.run('sync', { file: deps.snapshots.fileOf(memoryId) })
    const state = await sealObject(deps, path.join(work, STATE_FILE), stateId, {
      ...expected,
      maxBytes: STATE_MAX_BYTES,
    })
    const needs = describeNeeds(deps, body.record)
    const saved_at = new Date().toISOString()
    const objects = { memory: { id: memoryId, over, ...memory }, state, disk }
    return { saved: { format: 1, saved_at, needs, disk_mib: record.disk_mib, ...objects }, reservation }
  } catch (error) {
    await reservation.release()
    throw error
  }
}

const MIB = 1024 * 1024
/** Tables of a qcow2 file, and clusters that were freed and not yet used again. */
const DISK_OVERHEAD_MIB = 1024
/** Of devices: some 200 KB for one processor. */
const STATE_MAX_BYTES = 64 * MIB

/**
 * What lies under the disk it writes to: the layers of the generation it was resumed from. They may have been merged
 * since, and say the same; without one, those it was started with.
 */
function layersUnder(deps: Deps, record: VmRecord, body: Vmm): string[] {
  const { from: number } = body.record
  const from = number === undefined ? undefined : deps.snapshots.find(record.id, number)
  if (from?.manifest) return from.manifest.disk.map((layer) => layer.id)
  // What it wrote before it was kept is known by that generation alone; without it a disk with a gap would be saved.
  if (body.record.firstDisk) throw new Error(`generation ${number}, which it goes on from, cannot be read`)
  return body.record.layers
}

function saveMemory(deps: Deps, body: Vmm, memoryId: string, sync: boolean) {
  const { qemu, shape } = body.record
  const file = deps.snapshots.fileOf(memoryId)
  return deps.workers.run('saveMemory', {
    pid: qemu.pid,
    fd: FDS.ram,
    memBytes: shape.mem_mib * 1024 * 1024,
    file,
    sync,
  })
}

async function saveState(body: Vmm, work: string): Promise<void> {
  await rm(path.join(work, STATE_FILE), { force: true })
  await body.saveDevices()
}

/** A body's disks become objects under names that follow from the body: one that was taken before is not taken twice. */
export const diskObject = (body: string, n: number): string => `${body}-d${n}`

/** What is an object already was summed up when it became one. */
async function sealObject(deps: Deps, file: string, id: string, expected: Expected): Promise<StoredObject> {
  const known = deps.snapshots.findChecksums(id)
  if (known) return known
  await deps.snapshots.importFile(file, id, expected)
  return { id, ...(await deps.workers.run('seal', { file: deps.snapshots.fileOf(id) })) }
}

/** Whichever fails, all have ended before the try counts as failed: nothing is written behind our back. */
async function settleAll<T extends readonly unknown[]>(work: { [K in keyof T]: Promise<T[K]> }): Promise<T> {
  const results = await Promise.allSettled(work)
  for (const result of results) if (result.status === 'rejected') throw result.reason
  return results.map((result) => (result as PromiseFulfilledResult<unknown>).value) as unknown as T
}
