/**
 * What the VM of a build holds on its host: memory and an address, from the start of the build until the host has ended it.
 *
 * Only the number of builds per host makes a build wait, so its memory is counted even where it does not fit. Sandboxes
 * are then placed elsewhere, or refused, until the build has ended.
 */
import { sql } from 'kysely'
import type { Tx } from '../../db/connect.ts'

export async function reserveForBuild(tx: Tx, hostId: string, memMib: number): Promise<void> {
  await sql`update hosts set reserved_mib = reserved_mib + ${memMib}, vm_count = vm_count + 1,
      mem_mib = greatest(mem_mib, reserved_mib + ${memMib})
    where id = ${hostId}`.execute(tx)
}

/** Once, however many callers try: the statement that reads what a build holds also sets it to nothing. */
export async function releaseBuild(tx: Tx, templateId: string): Promise<void> {
  await sql`with released as (
      update templates set reserved_mib = 0, ip = null
      from (select id, reserved_mib as mib from templates where id = ${templateId} for no key update) held
      where templates.id = held.id and held.mib > 0
      returning templates.host_id, held.mib)
    update hosts set reserved_mib = reserved_mib - released.mib, vm_count = vm_count - 1
    from released where hosts.id = released.host_id`.execute(tx)
}
