/**
 * What is left of a machine that died and was never paused: its disk, as after a power cut. The layers its body had
 * written become objects; the resume boots from them with a kernel and empty memory.
 */
import { readdir } from 'node:fs/promises'
import path from 'node:path'
import { findBase } from '../bases/base.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import { diskFile } from '../vmm/args.ts'
import { diskObject } from '../vmm/save.ts'
import type { VmmPlan } from '../vmm/start.ts'
import { workFolderOf } from '../vmm/vmm.ts'
import type { VmRecord } from './registry.ts'

export async function recoverDisk(
  deps: Deps,
  record: VmRecord,
): Promise<{ plan: Omit<VmmPlan, 'id' | 'home' | 'lasting'> }> {
  const { body } = record
  if (!body) throw new HostError('snapshot_missing', `nothing of ${record.id} is left to start from`)
  const base = await findBase(deps, body)
  const layers = [...body.layers]
  // All of them, also those that a generation has: that one is not what we start from.
  for (const n of await listDisks(workFolderOf(deps, body.id))) {
    const file = path.join(workFolderOf(deps, body.id), diskFile(n))
    const object = diskObject(body.id, n)
    // Held by the dead body, as its other layers are, until the record lets go of it.
    deps.snapshots.retain(body.id, [object])
    await deps.snapshots.importFile(file, object, { uid: body.uid, maxBytes: Number.POSITIVE_INFINITY })
    layers.push(object)
  }
  if (layers.length === body.layers.length) {
    throw new HostError('snapshot_missing', `the disk of ${record.id} is gone`)
  }
  return { plan: { base, boot: true, layers, diskMib: record.disk_mib } }
}

/** The oldest first. The first ones are gone where the body's layers were put in order (standby.ts). */
async function listDisks(work: string): Promise<number[]> {
  const names = await readdir(work).catch(() => [])
  const numbers = names.flatMap((name) => /^disk-(\d+)\.qcow2$/.exec(name)?.[1] ?? []).map(Number)
  return numbers.sort((one, other) => one - other)
}
