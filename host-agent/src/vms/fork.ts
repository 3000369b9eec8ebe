/**
 * A fork: every child gets a generation of its own that names its source's objects. Nothing is copied, so ten children
 * cost ten manifests, and whoever is deleted first takes nothing from the others.
 *
 * A source that runs stands still for as long as its memory takes to write: memory and devices are saved, its disk is
 * frozen and a new layer put over it, and it goes on. What it says to the outside at that moment it says only once: a
 * child's first greeting ends every stream that was open in its memory (guest-api.ts).
 */
import { rm } from 'node:fs/promises'
import path from 'node:path'
import { crashPoint } from '@warren/kit/crash-point'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import { objectsOf } from '../snapshots/manifest.ts'
import { addDisk } from '../standby/standby.ts'
import { diskFile } from '../vmm/args.ts'
import { type Draft, type Saved, saveVmm } from '../vmm/save.ts'
import { type Vmm, workFolderOf } from '../vmm/vmm.ts'
import type { VmRecord } from './registry.ts'

/** Every child's first. */
export const FIRST_GENERATION = 1

/** Its objects are reserved in the same breath: a merge or a delete of the source may free them at any moment. */
export function findForkSource(deps: Deps, record: VmRecord, generation: number | undefined): Draft {
  const found =
    generation === undefined ? deps.snapshots.findNewest(record.id) : deps.snapshots.find(record.id, generation)
  if (!found) throw new HostError('snapshot_missing', `${record.id} has no generation ${generation ?? ''} to fork`)
  if (found.damage !== undefined) throw new HostError('snapshot_damaged', `generation ${found.generation} is damaged`)
  const reservation = deps.snapshots.reserve(objectsOf(found.manifest).map((object) => object.id))
  return { saved: found.manifest, reservation }
}

/** Before the child counts as there: its generation, then its record, both on disk. */
export async function addChild(deps: Deps, source: Saved, child: { id: string; fence: number }): Promise<VmRecord> {
  await deps.snapshots.deleteAll(child.id) // Of a try that was killed between the two.
  await deps.snapshots.add({ ...source, sandbox: child.id, generation: FIRST_GENERATION })
  await crashPoint('host.fork.child-saved')
  const record: VmRecord = {
    ...child,
    state: 'paused',
    ip: '',
    disk_mib: source.disk_mib,
    generation: FIRST_GENERATION,
    unborn: true,
  }
  await deps.registry.write(record)
  return record
}

export async function captureLive(deps: Deps, record: VmRecord, body: Vmm): Promise<Draft & { stopped_ms: number }> {
  const next = (await body.newestDisk()) + 1
  await rm(path.join(workFolderOf(deps, body.record.id), diskFile(next)), { force: true }) // Of a try that failed.
  await addDisk(deps, body, next, record.disk_mib)

  let stoppedAt = 0
  let stopped_ms = 0
  let standing = true
  const goOn = async (disk: number) => {
    await body.freezeDisk(disk)
    await body.resumeCpus()
    standing = false
    stopped_ms = Math.round((performance.now() - stoppedAt) * 10) / 10
  }
  try {
    stoppedAt = performance.now()
    await body.pauseCpus()
    await crashPoint('host.fork.stopped')
    return { ...(await saveVmm(deps, record, body, goOn)), stopped_ms }
  } finally {
    if (standing) await body.resumeCpus()
  }
}
