/** Gives back what a VMM holds. All of it works from the record alone, for VMMs that died or that another process started. */
import { rmSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import type { Deps } from '../deps.ts'
import { socketFolderOf, vmmFolderOf } from './folders.ts'
import { killProcess } from './process.ts'
import type { VmmRecord } from './record.ts'
import type { Vmm } from './vmm.ts'

const releases = new WeakMap<VmmRecord, Promise<void>>()

/** Kills the process, releases everything it holds and deletes its disk. */
export async function stopVmm(deps: Deps, record: VmmRecord, vmm?: Vmm): Promise<void> {
  await releaseVmm(deps, record, vmm)
  await deps.snapshots.release(record.id)
  await rm(vmmFolderOf(deps, record.id), { recursive: true, force: true })
}

/**
 * Kills the process and releases slot, cgroup and sockets. The disk stays: of a VMM that died it is all there is.
 * Happens once, however often it is called: a moment later the slot's number belongs to another VMM.
 */
export function releaseVmm(deps: Deps, record: VmmRecord, vmm?: Vmm): Promise<void> {
  if (vmm) vmm.stopping = true
  if (record.resources === 'released') return Promise.resolve()
  let work = releases.get(record)
  if (!work) {
    work = releaseOnce(deps, record, vmm)
    releases.set(record, work)
    // A release that failed may be tried again.
    work.catch(() => releases.delete(record))
  }
  return work
}

async function releaseOnce(deps: Deps, record: VmmRecord, vmm?: Vmm): Promise<void> {
  await killProcess(record.qemu)
  vmm?.close()
  // The rules of the slot go after its QEMU, so that no packet can pass without them.
  if (record.resources === 'held') await deps.network.slots.release(record.slot)
  record.resources = 'slot-released'
  await deps.cgroups.remove(record.id)
  rmSync(socketFolderOf(deps, record.id), { recursive: true, force: true })
  record.resources = 'released'
}
