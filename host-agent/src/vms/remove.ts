/** Destroying finishes: QEMU, slot with its rules, cgroup, sockets, files. Each step may find its thing gone already. */
import { rm } from 'node:fs/promises'
import type { Deps } from '../deps.ts'
import { socketDirOf } from './launch.ts'
import { endProcess } from './process.ts'
import type { VmRecord } from './registry.ts'
import type { Vm } from './vm.ts'

export async function removeVm(deps: Deps, record: VmRecord, vm?: Vm): Promise<void> {
  if (record.qemu) await endProcess(record.qemu)
  await vm?.close()
  // The rules of a slot go after its QEMU: no packet of it can follow.
  if (record.slot !== undefined) await deps.network.slots.release(record.slot)
  await deps.cgroups.remove(record.id)
  await rm(socketDirOf(deps, record.id), { recursive: true, force: true })
  await deps.registry.remove(record.id)
}
