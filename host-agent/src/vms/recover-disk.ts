/**
 * Recovers the disk of a VM that died without ever being saved, in the state of a power failure. The disks that its VMM
 * wrote become objects of the store, and the resume boots a kernel with empty memory on top of them.
 */
import path from 'node:path'
import { getBase } from '../bases/base.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import { diskFile } from '../vmm/args.ts'
import { diskObject } from '../vmm/disk/chain.ts'
import { listDisks } from '../vmm/disk/live.ts'
import { workFolderOf } from '../vmm/folders.ts'
import type { DeadVm, PausedVm } from './record.ts'
import type { SourcePlan } from './restore.ts'

export async function recoverDisk(deps: Deps, record: PausedVm | DeadVm): Promise<SourcePlan> {
  if (record.state !== 'dead') throw new HostError('snapshot_missing', `no generation of ${record.id} can be read`)
  const { vmm } = record
  const base = await getBase(deps, vmm)
  const layers = [...vmm.disk.layers]
  // All disks in the folder, also those that are part of a generation: no generation is the starting point here.
  for (const disk of await listDisks(deps, vmm)) {
    const file = path.join(workFolderOf(deps, vmm.id), diskFile(disk))
    const object = diskObject(vmm.id, disk)
    // Retained for the dead VMM, like its layers, until the record no longer names it.
    deps.snapshots.retain(vmm.id, [object])
    await deps.snapshots.importFile(file, object, { uid: vmm.uid, maxBytes: Number.POSITIVE_INFINITY })
    layers.push(object)
  }
  if (layers.length === vmm.disk.layers.length) {
    throw new HostError('snapshot_missing', `the disk of ${record.id} is gone`)
  }
  return { base, start: { from: 'disk' }, layers, diskMib: record.diskMib }
}
