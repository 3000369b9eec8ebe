/**
 * Deletes VMs that no sandbox needs: those of ended sandboxes, and of creates that were interrupted before their row was stored.
 *
 * Rows of sandboxes are never deleted. So a VM without a row that was created before its host was known to this database belongs to
 * another database: that of an earlier installation, or of a setting that has changed. It may be all that is left of someone's
 * work, so it is kept and reported.
 */
import { type HostState, type HostVm, idTime, isTerminal } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'

/** The clocks of the database and of the processes that choose ids may differ. */
const CLOCKS_DIFFER_MS = 60_000

type Row = Pick<SandboxRow, 'id' | 'fence' | 'status' | 'host_id'>

export async function deleteOrphans(deps: Deps, state: HostState, address: string): Promise<void> {
  if (state.vms.length === 0) return
  const ids = state.vms.map((vm) => vm.id)
  const rows = await deps.db
    .selectFrom('sandboxes')
    .select(['id', 'fence', 'status', 'host_id'])
    .where('id', 'in', ids)
    .execute()
  const byId = new Map(rows.map((row) => [row.id, row]))
  const orphans = state.vms.filter((vm) => {
    const row = byId.get(vm.id)
    return !row || isTerminal(row.status) || row.host_id !== state.id
  })
  if (orphans.length === 0) return
  const knownSince = await findKnownSince(deps, state.id)
  const isForeign = (vm: HostVm) => !byId.has(vm.id) && !(idTime(vm.id) >= knownSince - CLOCKS_DIFFER_MS)
  reportForeign(deps, state.id, orphans.filter(isForeign))
  const ours = orphans.filter((vm) => !isForeign(vm))
  await Promise.all(ours.map((vm) => deleteOrphan(deps, address, vm, byId.get(vm.id))))
}

/** When the host was first seen, in milliseconds. Infinite if its first heartbeat is not stored yet. */
async function findKnownSince(deps: Deps, hostId: string): Promise<number> {
  const host = await deps.db.selectFrom('hosts').select('created_at').where('id', '=', hostId).executeTakeFirst()
  return host?.created_at.getTime() ?? Number.POSITIVE_INFINITY
}

const reported = new WeakMap<Deps, string>()

/** Once for the same VMs. */
function reportForeign(deps: Deps, host: string, vms: HostVm[]): void {
  const ids = vms.map((vm) => vm.id).join()
  if (ids === (reported.get(deps) ?? '')) return
  reported.set(deps, ids)
  if (vms.length === 0) return
  deps.log.error(
    { host, sandboxes: vms.map((vm) => vm.id).slice(0, 10), count: vms.length },
    'the host has VMs that this database does not know and that are older than it; they are kept. ' +
      'Check DATABASE_URL and the data directory: one of them belongs to another installation',
  )
}

async function deleteOrphan(deps: Deps, address: string, vm: HostVm, row: Row | undefined): Promise<void> {
  const fence = Math.max(vm.fence, row?.fence ?? 0) + 1
  try {
    await deps.hosts.clientAt(address).deleteVm(vm.id, fence)
    deps.log.warn({ sandbox: vm.id, status: row?.status ?? 'unknown' }, 'deleted an orphaned VM')
  } catch (error) {
    deps.log.warn({ err: error, sandbox: vm.id }, 'failed to delete an orphaned VM, retrying')
  }
}
