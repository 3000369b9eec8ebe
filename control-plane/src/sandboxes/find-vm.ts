import type { HostVm } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'

/** The VM of a sandbox as its host reports it now, or undefined when the host has none. Throws if the host is unreachable. */
export async function findVm(deps: Deps, row: Pick<SandboxRow, 'id' | 'host_id'>): Promise<HostVm | undefined> {
  const host = await deps.hosts.get(row.host_id)
  const { vms } = await host.getState()
  return vms.find((vm) => vm.id === row.id)
}
