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
import { type Body, workOf } from './body.ts'
import { describeNeeds } from './needs.ts'
import { diskFile, FDS, STATE_FILE } from './qemu/args.ts'
import type { VmRecord } from './registry.ts'

export type Saved = Omit<Manifest, 'sandbox' | 'generation'>

export async function saveBody(
  deps: Deps,
  record: VmRecord,
  body: Body,
  goOn?: (newestDisk: number) => Promise<void>,
): Promise<Saved> {
  const { id, over } = body.record
  const stamp = Date.now().toString(36)
  const memoryId = `${id}-m${stamp}`
  const stateId = `${id}-s${stamp}`
  const work = workOf(deps, id)
  const newestDisk = await body.newestDisk()
  const { firstDisk = 0 } = body.record
  const ownDisks = Array.from({ length: newestDisk + 1 - firstDisk }, (_, i) => firstDisk + i)
  const sealDisks = () =>
    settleAll([
      ...layersUnder(deps, record, body).map((layer) => sealObject(deps, deps.snapshots.fileOf(layer), layer)),
      ...ownDisks.map((n) => sealObject(deps, path.join(work, diskFile(n)), diskObject(id, n))),
    ])
  try {
    const captured = settleAll([saveMemory(deps, body, memoryId, !goOn), saveState(body, work)])
    const disks = goOn
      ? captured.then(() => goOn(newestDisk)).then(sealDisks)
      : settleAll([sealDisks(), captured]).then(([sealed]) => sealed)
    const disk = await disks
    const [memory] = await captured
    if (goOn) await deps.workers.run('sync', { file: deps.snapshots.fileOf(memoryId) })
    const state = await sealObject(deps, path.join(work, STATE_FILE), stateId)
    const needs = describeNeeds(deps, body.record)
    const saved_at = new Date().toISOString()
    return {
      format: 1,
      saved_at,
      needs,
      disk_mib: record.disk_mib,
      memory: { id: memoryId, over, ...memory },
      state,
      disk,
    }
  } catch (error) {
    await deps.snapshots.discard([memoryId, stateId, diskObject(id, newestDisk)])
    throw error
  }
}

/**
 * What lies under the disk it writes to: the layers of the generation it was resumed from. They may have been merged
 * since, and say the same; without one, those it was started with.
 */
function layersUnder(deps: Deps, record: VmRecord, body: Body): string[] {
  const from = record.generation === undefined ? undefined : deps.snapshots.find(record.id, record.generation)
  return from?.manifest?.disk.map((layer) => layer.id) ?? body.record.layers
}

function saveMemory(deps: Deps, body: Body, memoryId: string, sync: boolean) {
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

async function saveState(body: Body, work: string): Promise<void> {
  await rm(path.join(work, STATE_FILE), { force: true })
  await body.saveDevices()
}

/** A body's disks become objects under names that follow from the body: one that was taken before is not taken twice. */
export const diskObject = (body: string, n: number): string => `${body}-d${n}`

/** What is an object already was summed up when it became one. */
async function sealObject(deps: Deps, file: string, id: string): Promise<StoredObject> {
  const known = deps.snapshots.sumsOf(id)
  if (known) return known
  await deps.snapshots.take(file, id)
  return { id, ...(await deps.workers.run('seal', { file: deps.snapshots.fileOf(id) })) }
}

/** Whichever fails, all have ended before the try counts as failed: nothing is written behind our back. */
async function settleAll<T extends readonly unknown[]>(work: { [K in keyof T]: Promise<T[K]> }): Promise<T> {
  const results = await Promise.allSettled(work)
  for (const result of results) if (result.status === 'rejected') throw result.reason
  return results.map((result) => (result as PromiseFulfilledResult<unknown>).value) as unknown as T
}
