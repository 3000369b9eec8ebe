/** Takes the files of a VM's disk into the snapshot store and computes their checksums. */
import path from 'node:path'
import type { Deps } from '../../deps.ts'
import type { StoredObject } from '../../snapshots/manifest.ts'
import type { Expected } from '../../snapshots/objects.ts'
import { waitForAll } from '../../wait-for-all.ts'
import { diskFile } from '../args.ts'
import { workFolderOf } from '../folders.ts'
import type { VmmRecord } from '../record.ts'
import { type DiskChain, diskObject, layersBelowUnsaved } from './chain.ts'

const MIB = 1024 * 1024
/** Tables of a qcow2 file, and clusters that were freed and not reused yet. */
const DISK_OVERHEAD_MIB = 1024

/** The layers below the unsaved disks of a sandbox, oldest first. */
export function listLayersBelow({ snapshots }: Deps, sandbox: string, chain: DiskChain): readonly string[] {
  const found = chain.generation === null ? undefined : snapshots.find(sandbox, chain.generation)
  return layersBelowUnsaved(
    chain,
    found?.manifest?.disk.map((layer) => layer.id),
  )
}

/** `layers` and, above them, `disks` of the VMM. The caller has reserved the objects of both. */
export function sealDisks(
  deps: Deps,
  vm: { diskMib: number },
  { id, uid }: VmmRecord,
  layers: readonly string[],
  disks: readonly number[],
): Promise<StoredObject[]> {
  const work = workFolderOf(deps, id)
  const expected = { uid, maxBytes: (vm.diskMib + DISK_OVERHEAD_MIB) * MIB }
  return waitForAll([
    ...layers.map((layer) => sealObject(deps, deps.snapshots.fileOf(layer), layer, expected)),
    ...disks.map((disk) => sealObject(deps, path.join(work, diskFile(disk)), diskObject(id, disk), expected)),
  ])
}

/** An object that is in the store already has its checksums. */
export async function sealObject(deps: Deps, file: string, id: string, expected: Expected): Promise<StoredObject> {
  const known = deps.snapshots.findChecksums(id)
  if (known) return known
  await deps.snapshots.importFile(file, id, expected)
  return { id, ...(await deps.workers.run('seal', { file: deps.snapshots.fileOf(id) })) }
}
