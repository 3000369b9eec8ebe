/**
 * Disk space of hosts. A sandbox may use its whole disk, and as much again as its memory when it is paused. What is promised to
 * the sandboxes of a host like this may exceed what there is by the factor that the operator sets, because most use a part of it.
 * Whatever was promised, nothing new is placed on a host with less free space than it must keep
 * (docs/decisions/0049-bounded-disks.md).
 */
import { unavailable } from '@warren/kit/failure'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { HostRow, SandboxRow } from '../db/schema.ts'
import { CAPACITY_RETRY_S } from './capacity.ts'

/** A condition for `hosts`: true where there is more free space than must stay free. */
export const HAS_DISK_SPACE = sql<boolean>`(disk_free_mib is null or disk_free_mib >= disk_floor_mib)`

type Promised = Pick<SandboxRow, 'disk_mib' | 'mem_mib'>

/** What a sandbox may use: its disk, and its memory while it is paused. */
export const promisedMib = ({ disk_mib, mem_mib }: Promised): number => disk_mib + mem_mib

/** Whether so much more can be promised. Exact while the host's row is locked, as every placement does. */
export async function canPromise(tx: Tx, host: HostRow, mib: number, overcommit: number): Promise<boolean> {
  const { disk_free_mib: free, disk_floor_mib: floor, disk_sandboxes_mib: used } = host
  if (free === null || floor === null || used === null) return true // Not reported yet.
  return (await sumPromised(tx, host.id)) + mib <= Math.max(free + used - floor, 0) * overcommit
}

/** Also disks that are being grown: their rows have the new size only at the end (resize.ts). */
async function sumPromised(tx: Tx, hostId: string): Promise<number> {
  const { rows } = await sql<{ mib: number }>`select (
      (select coalesce(sum(disk_mib::bigint + mem_mib), 0) from sandboxes
        where host_id = ${hostId} and status not in ('destroyed', 'failed')) +
      (select coalesce(sum(greatest(r.disk_mib - s.disk_mib, 0)), 0) from sandbox_resizes r
        join sandboxes s on s.id = r.sandbox_id
        where s.host_id = ${hostId} and s.status not in ('destroyed', 'failed')))::float8 as mib`.execute(tx)
  return rows[0]!.mib
}

/** Throws if each active host has too little free space. With `hostId`, only that host matters. */
export async function checkDiskSpace(tx: Tx, hostId?: string): Promise<void> {
  const hosts = await tx
    .selectFrom('hosts')
    .select(HAS_DISK_SPACE.as('hasSpace'))
    .where('status', '=', 'active')
    .$if(hostId !== undefined, (query) => query.where('id', '=', hostId!))
    .execute()
  if (hosts.length > 0 && hosts.every(({ hasSpace }) => !hasSpace)) throw diskFull()
}

/** 503: less is free than must stay free. */
export const diskFull = (cause?: unknown) =>
  unavailable(
    'the disk of the host is nearly full; try again when space was freed, for example by deleting sandboxes',
    {
      cause,
      retryAfterSeconds: CAPACITY_RETRY_S,
    },
  )

/** 503: there is free space, but it is promised to other sandboxes. */
export const diskPromised = (diskMib: number) =>
  unavailable(`no host has ${diskMib} MiB of disk space left to promise; delete sandboxes, or ask for a smaller disk`, {
    retryAfterSeconds: CAPACITY_RETRY_S,
  })
