/** Puts what the network counted into the record, before the VMM's slot is released. */
import type { Deps } from '../deps.ts'
import type { VmmRecord } from '../vmm/record.ts'
import { readCounts } from './counts.ts'
import { addFlows, readFlows } from './flows.ts'
import { moveVm } from './move.ts'
import { toStored, type VmRecord } from './record.ts'

type Vm = { readonly id: string; readonly record: VmRecord }

export async function saveUsage(deps: Deps, vm: Vm, vmm: VmmRecord): Promise<void> {
  await saveCounts(deps, vm, vmm)
  await saveFlows(deps, vm, vmm)
}

export async function saveCounts(deps: Deps, vm: Vm, vmm: VmmRecord): Promise<void> {
  const counts = await readCounts(deps, vm.id, vmm)
  if (counts) moveVm(vm, 'usage', { counts })
}

/** Returns whether there were any. */
export async function saveFlows(deps: Deps, vm: Vm, vmm: VmmRecord): Promise<boolean> {
  const flows = await readFlows(deps, vm.id, vmm)
  if (flows) moveVm(vm, 'usage', { flows: addFlows(toStored(vm.record)?.flows ?? [], flows) })
  return flows !== undefined
}
