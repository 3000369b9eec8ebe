/**
 * A disk that differs from its row without a recorded resize: the sandbox was forked from one whose disk was growing, or
 * its host returned to a generation, or to a record, from before the disk grew. The larger size is right: a disk cannot
 * shrink, and a size that the API has shown is not taken back.
 */
import type { HostVm } from '@warren/protocol'
import { sql } from 'kysely'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'

/** Records a resize if the host reports another size than the row, which was read before the host was asked. */
export async function addMissingResize(
  deps: Deps,
  row: Pick<SandboxRow, 'id' | 'fence' | 'status' | 'disk_mib'>,
  vm: Pick<HostVm, 'state' | 'disk_mib' | 'grow_pending'> | undefined,
): Promise<void> {
  if (row.status !== 'running' || vm?.state !== 'running' || vm.disk_mib === undefined) return
  if (vm.disk_mib === row.disk_mib && !vm.grow_pending) return
  const diskMib = Math.max(vm.disk_mib, row.disk_mib)
  // The lock waits for a resize that is about to finish; then the row has its size, and nothing is missing.
  const { numAffectedRows = 0n } = await sql`insert into sandbox_resizes (sandbox_id, disk_mib)
    select id, ${diskMib} from sandboxes
    where id = ${row.id} and fence = ${row.fence} and status = 'running' and disk_mib = ${row.disk_mib}
    for no key update
    on conflict do nothing`.execute(deps.db)
  if (numAffectedRows === 0n) return // Being resized, or another operation has begun since.
  const sizes = { row: row.disk_mib, vm: vm.disk_mib, pending: vm.grow_pending ?? false }
  deps.log.warn({ sandbox: row.id, sizes }, 'the disk of a sandbox differs from its row; growing it')
}
