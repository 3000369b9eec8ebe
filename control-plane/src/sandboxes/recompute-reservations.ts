/**
 * Recomputes what running sandboxes reserve, when it is not what a sandbox of their shape reserves today: versions before 0.3.0
 * reserved the memory of the guest alone, and a host may have changed its acceleration. A host that is full already stays
 * full: what its VMMs use is counted even where it does not fit.
 */
import { sql } from 'kysely'
import type { HostRow, SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { reservedMib } from './reservations.ts'

type Group = Pick<SandboxRow, 'vcpu' | 'mem_mib' | 'reserved_mib'> & Pick<HostRow, 'accel'> & { ids: string[] }

export async function recomputeReservations(deps: Deps): Promise<void> {
  const { rows } =
    await sql<Group>`select s.vcpu, s.mem_mib, s.reserved_mib, h.accel, array_agg(s.id order by s.id) as ids
    from sandboxes s join hosts h on h.id = s.host_id
    where s.reserved_mib > 0 and h.accel is not null
    group by s.vcpu, s.mem_mib, s.reserved_mib, h.accel`.execute(deps.db)
  for (const group of rows) {
    const mib = reservedMib(group, group)
    if (mib === group.reserved_mib) continue
    for (const id of group.ids) await recompute(deps, id, group.reserved_mib, mib)
    deps.log.info(
      { sandboxes: group.ids, from: group.reserved_mib, to: mib },
      'recomputed the reserved memory of sandboxes',
    )
  }
}

/** Does nothing if the reservation has changed or was released meanwhile. */
async function recompute(deps: Deps, id: string, from: number, to: number): Promise<void> {
  await sql`with changed as (
      update sandboxes set reserved_mib = ${to} where id = ${id} and reserved_mib = ${from} returning host_id)
    update hosts set reserved_mib = reserved_mib + ${to - from}::integer,
      mem_mib = greatest(mem_mib, reserved_mib + ${to - from}::integer)
    from changed where hosts.id = changed.host_id`.execute(deps.db)
}
