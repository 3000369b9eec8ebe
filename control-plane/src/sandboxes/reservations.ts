/**
 * Memory that sandboxes reserve on their hosts: what the host allows their VMMs, which is the memory of the guest and what
 * QEMU needs beside it (protocol/src/vmm-memory.ts). Builds of templates hold memory there too (templates/builds/reserve.ts).
 *
 * A reservation is a guarded update of the host's row, so a host is never overcommitted. The sandbox's row records how
 * much it holds (`reserved_mib`). Releasing sets that to 0 in the statement that reads it, so memory is released once
 * however many callers try. A move that ends the use of memory does it in its own statement (`releasesMemory` in move.ts).
 *
 * Every transaction locks rows in this order: user, sandbox, networks by id, network revisions by sandbox id, disks by id,
 * attachments by id, mount revisions by sandbox id, the user's row of sandbox_counts, host. It holds one host at a time
 * (placement.ts). Rows are locked with FOR NO KEY UPDATE, never FOR UPDATE: a row that is updated twice in one transaction has
 * its foreign keys checked again, so a fork's child then takes a shared lock on its source, which is outside this order.
 */
import { vmmMemoryMib } from '@warren/protocol'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { HostRow, SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { noCapacity } from './capacity.ts'

export type ReservedShape = Pick<SandboxRow, 'vcpu' | 'mem_mib'>

/** What a VMM of this shape reserves on a host. One that has not reported its acceleration yet may emulate. */
export const reservedMib = ({ accel }: Pick<HostRow, 'accel'>, shape: ReservedShape): number =>
  vmmMemoryMib(shape, accel ?? 'tcg')

/** The same for the host of a statement. */
export const reservedSql = (shape: ReservedShape) =>
  sql<number>`case accel when 'kvm' then ${vmmMemoryMib(shape, 'kvm')}::integer
    else ${vmmMemoryMib(shape, 'tcg')}::integer end`

/**
 * Reserves memory for a sandbox that holds none. Only its current host will do, because its snapshot is stored there.
 * Throws 503 when the memory does not fit.
 */
export async function reserveMemory(tx: Tx, row: SandboxRow): Promise<void> {
  const host = row.host_id === null ? undefined : await reserveOnHost(tx, row.host_id, row)
  if (!host) throw noCapacity({ shape: row.shape, region: row.region })
  await recordReserved(tx, row, host)
}

/** For a VM that already runs on the host: its memory is in use, so it is counted even where it does not fit. */
export async function reserveMemoryUnchecked(tx: Tx, row: SandboxRow): Promise<void> {
  const { rows } = await sql<Pick<HostRow, 'accel'>>`update hosts
    set reserved_mib = reserved_mib + ${reservedSql(row)}, vm_count = vm_count + 1,
      mem_mib = greatest(mem_mib, reserved_mib + ${reservedSql(row)})
    where id = ${row.host_id} returning accel`.execute(tx)
  if (rows[0]) await recordReserved(tx, row, rows[0])
}

/** Call this when the VM no longer uses memory: deleted, or saved. Does nothing for a sandbox that holds none. */
export async function releaseMemory(tx: Tx, sandboxId: string): Promise<void> {
  await sql`with released as (
      update sandboxes set reserved_mib = 0
      from (select id, reserved_mib as mib from sandboxes where id = ${sandboxId} for no key update) held
      where sandboxes.id = held.id and held.mib > 0
      returning sandboxes.host_id, held.mib)
    update hosts set reserved_mib = reserved_mib - released.mib, vm_count = vm_count - 1
    from released where hosts.id = released.host_id`.execute(tx)
}

/** The part of a release that concerns the host, for a move that sets the sandbox's reservation to 0 (move.ts). */
export async function releaseOnHost(tx: Tx, hostId: string | null, mib: number): Promise<void> {
  await sql`update hosts set reserved_mib = reserved_mib - ${mib}::integer, vm_count = vm_count - 1
    where id = ${hostId}`.execute(tx)
}

/**
 * Corrects hosts whose reserved memory differs from the sum of their sandboxes and builds. Both change in one transaction, so a
 * difference is a bug and is logged as an error. The correction locks the host's row, which every reservation updates.
 */
export async function repairReservations(deps: Deps): Promise<void> {
  const wrong = await sql<{ id: string }>`select h.id from hosts h
    left join (${RESERVED_BY_HOST}) held on held.host_id = h.id
    where h.reserved_mib <> coalesce(held.mib, 0) or h.vm_count <> coalesce(held.n, 0)`.execute(deps.db)
  for (const { id } of wrong.rows) {
    deps.log.error(
      { host: id },
      'reserved memory of host differs from the sum of its sandboxes and builds, correcting it',
    )
    await deps.db.transaction().execute(async (tx) => {
      await sql`select from hosts where id = ${id} for no key update`.execute(tx)
      await sql`update hosts h set reserved_mib = coalesce(held.mib, 0), vm_count = coalesce(held.n, 0),
          mem_mib = greatest(mem_mib, coalesce(held.mib, 0))
        from (select ${id}::text as id) this left join (${RESERVED_BY_HOST}) held on held.host_id = this.id
        where h.id = this.id`.execute(tx)
    })
  }
}

const RESERVED_BY_HOST = sql`select host_id, sum(reserved_mib)::integer as mib, count(*)::integer as n
  from (select host_id, reserved_mib from sandboxes where reserved_mib > 0
    union all select host_id, reserved_mib from templates where reserved_mib > 0) holders group by host_id`

/** Gives undefined when the host is not active or the memory does not fit. The host's row is locked afterwards. */
export function reserveOnHost(tx: Tx, hostId: string, shape: ReservedShape): Promise<HostRow | undefined> {
  return tx
    .updateTable('hosts')
    .set({ reserved_mib: sql<number>`reserved_mib + ${reservedSql(shape)}`, vm_count: sql<number>`vm_count + 1` })
    .where('id', '=', hostId)
    .where('status', '=', 'active')
    .where(sql<boolean>`reserved_mib + ${reservedSql(shape)} <= mem_mib`)
    .returningAll()
    .executeTakeFirst()
}

/** For a sandbox that needs an address but no memory yet. */
export function lockActiveHost(tx: Tx, hostId: string): Promise<HostRow | undefined> {
  return tx
    .selectFrom('hosts')
    .selectAll()
    .where('id', '=', hostId)
    .where('status', '=', 'active')
    .forNoKeyUpdate()
    .executeTakeFirst()
}

async function recordReserved(tx: Tx, row: SandboxRow, host: Pick<HostRow, 'accel'>): Promise<void> {
  const updated = await tx
    .updateTable('sandboxes')
    .set({ reserved_mib: reservedMib(host, row) })
    .where('id', '=', row.id)
    .where('reserved_mib', '=', 0)
    .executeTakeFirst()
  if (updated.numUpdatedRows !== 1n) throw new Error(`sandbox ${row.id} already holds reserved memory`)
}
