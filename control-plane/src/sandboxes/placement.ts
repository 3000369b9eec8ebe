/**
 * Where a sandbox goes, and what it holds there.
 *
 * Memory is promised by a guarded UPDATE of the host's row, so a host is never oversold. The row of the sandbox says
 * what it holds (`reserved_mib`); giving back sets that to 0 in the statement that reads it, so it happens once,
 * whoever does it and however often.
 *
 * Locks are taken in one order everywhere: user, sandbox, its user's counts, host. And never FOR UPDATE, only FOR NO KEY
 * UPDATE: a row that is written twice in one transaction has its foreign keys checked again, so a child then wants a
 * shared lock of its source, out of that order.
 */
import { unavailable } from '@warren/kit/failure'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { HostRow, SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { allocateAddress } from './addresses.ts'

export type Wanted = { shape: string; memMib: number; image: string; region: string; hostId: string | undefined }
export type Place = { hostId: string; ip: string }

/** Clients obey it without a cap (wire 19). */
export const CAPACITY_RETRY_S = 2

export async function placeSandbox(tx: Tx, wanted: Wanted): Promise<Place> {
  const hosts = await listCandidates(tx, wanted)
  for (const { id } of hosts) {
    const host = await reserve(tx, id, wanted.memMib)
    const ip = host && (await allocateAddress(tx, host))
    if (host && ip !== undefined) return { hostId: host.id, ip }
    // Its block of addresses is used up: another host may have some.
    if (host) await giveBack(tx, host.id, wanted.memMib)
  }
  throw await whyNot(tx, wanted)
}

export const cannotFit = ({ shape, region, hostId }: Pick<Wanted, 'shape' | 'region' | 'hostId'>) =>
  unavailable(hostId === undefined ? `no capacity for ${shape} in ${region}` : `host ${hostId} cannot fit ${shape}`, {
    retryAfterSeconds: CAPACITY_RETRY_S,
  })

/** For the row of a sandbox whose VM is gone or saved. What it did not hold is not given back. */
export async function releaseMemory(tx: Tx, sandboxId: string): Promise<void> {
  await sql`with released as (
      update sandboxes set reserved_mib = 0
      from (select id, reserved_mib as mib from sandboxes where id = ${sandboxId} for no key update) held
      where sandboxes.id = held.id and held.mib > 0
      returning sandboxes.host_id, held.mib)
    update hosts set reserved_mib = reserved_mib - released.mib, vm_count = vm_count - 1
    from released where hosts.id = released.host_id`.execute(tx)
}

/** Memory on its own host again, for a row that holds none: what it saved lies there and nowhere else. */
export async function reserveMemory(tx: Tx, row: SandboxRow): Promise<void> {
  const host = row.host_id === null ? undefined : await reserve(tx, row.host_id, row.mem_mib)
  if (!host) throw cannotFit({ ...row, hostId: undefined })
  await hold(tx, row)
}

/** For a VM that was found running: the host gives that memory already, so it is counted, room or not. */
export async function reserveMemoryUnchecked(tx: Tx, row: SandboxRow): Promise<void> {
  await hold(tx, row)
  await sql`update hosts set reserved_mib = reserved_mib + ${row.mem_mib}, vm_count = vm_count + 1,
      mem_mib = greatest(mem_mib, reserved_mib + ${row.mem_mib})
    where id = ${row.host_id}`.execute(tx)
}

/** `count` addresses on the host of the source, and the memory of those that will run at once: all or nothing. */
export async function placeForks(tx: Tx, source: SandboxRow, count: number, run: boolean): Promise<string[]> {
  const ips: string[] = []
  for (let child = 0; child < count; child++) {
    const host = run ? await reserve(tx, source.host_id!, source.mem_mib) : await lockHost(tx, source.host_id!)
    const ip = host && (await allocateAddress(tx, host))
    // Their rows come later: a search that went round the whole block finds the first of them again.
    if (ip === undefined || ips.includes(ip)) throw cannotFit({ ...source, hostId: undefined })
    ips.push(ip)
  }
  return ips
}

/**
 * What hosts promised against what rows hold. Both change in one transaction, so any snapshot shows them equal. Mended
 * under the lock of the host's row: whoever changes either waits for it, or has not begun.
 */
export async function repairReservations(deps: Deps): Promise<void> {
  const wrong = await sql<{ id: string }>`select h.id from hosts h
    left join (${HELD}) held on held.host_id = h.id
    where h.reserved_mib <> coalesce(held.mib, 0) or h.vm_count <> coalesce(held.n, 0)`.execute(deps.db)
  for (const { id } of wrong.rows) {
    deps.log.error({ host: id }, 'the memory promised by a host is not what its sandboxes hold; mending it')
    await deps.db.transaction().execute(async (tx) => {
      await sql`select from hosts where id = ${id} for no key update`.execute(tx)
      await sql`update hosts h set reserved_mib = coalesce(held.mib, 0), vm_count = coalesce(held.n, 0),
          mem_mib = greatest(mem_mib, coalesce(held.mib, 0))
        from (select ${id}::text as id) this left join (${HELD}) held on held.host_id = this.id
        where h.id = this.id`.execute(tx)
    })
  }
}

const HELD = sql`select host_id, sum(reserved_mib)::integer as mib, count(*)::integer as n
  from sandboxes where reserved_mib > 0 group by host_id`

/** The emptiest first: what is left over is then spread, and one host that dies takes the fewest with it. */
async function listCandidates(tx: Tx, wanted: Wanted): Promise<Pick<HostRow, 'id'>[]> {
  return tx
    .selectFrom('hosts')
    .select('id')
    .where('status', '=', 'active')
    .where('region', '=', wanted.region)
    .where(sql<boolean>`${wanted.image} = any (rootfses)`)
    .where(sql<boolean>`mem_mib - reserved_mib >= ${wanted.memMib}`)
    .$if(wanted.hostId !== undefined, (query) => query.where('id', '=', wanted.hostId!))
    .orderBy(sql`mem_mib - reserved_mib`, 'desc')
    .orderBy('id')
    .limit(8)
    .execute()
}

function reserve(tx: Tx, hostId: string, memMib: number): Promise<HostRow | undefined> {
  return tx
    .updateTable('hosts')
    .set({ reserved_mib: sql<number>`reserved_mib + ${memMib}`, vm_count: sql<number>`vm_count + 1` })
    .where('id', '=', hostId)
    .where('status', '=', 'active')
    .where(sql<boolean>`reserved_mib + ${memMib} <= mem_mib`)
    .returningAll()
    .executeTakeFirst()
}

function lockHost(tx: Tx, hostId: string): Promise<HostRow | undefined> {
  return tx
    .selectFrom('hosts')
    .selectAll()
    .where('id', '=', hostId)
    .where('status', '=', 'active')
    .forNoKeyUpdate()
    .executeTakeFirst()
}

async function hold(tx: Tx, row: SandboxRow): Promise<void> {
  const held = await tx
    .updateTable('sandboxes')
    .set({ reserved_mib: row.mem_mib })
    .where('id', '=', row.id)
    .where('reserved_mib', '=', 0)
    .executeTakeFirst()
  if (held.numUpdatedRows !== 1n) throw new Error(`${row.id} holds memory already`)
}

async function giveBack(tx: Tx, hostId: string, memMib: number): Promise<void> {
  await tx
    .updateTable('hosts')
    .set({ reserved_mib: sql<number>`reserved_mib - ${memMib}`, vm_count: sql<number>`vm_count - 1` })
    .where('id', '=', hostId)
    .execute()
}

/** An image that is still being built is worth waiting for, so the answer says that it is. */
async function whyNot(tx: Tx, wanted: Wanted): Promise<Error> {
  const hosts = await tx
    .selectFrom('hosts')
    .select(['rootfses', 'images'])
    .where('status', '=', 'active')
    .where('region', '=', wanted.region)
    .$if(wanted.hostId !== undefined, (query) => query.where('id', '=', wanted.hostId!))
    .execute()
  if (hosts.length === 0 || hosts.some((host) => host.rootfses.includes(wanted.image))) return cannotFit(wanted)
  const images = hosts.flatMap((host) => host.images.filter((image) => image.name === wanted.image))
  const building = images.some((image) => image.state === 'building')
  return unavailable(`rootfs ${wanted.image} is ${building ? 'still being built' : 'not available on any host'}`, {
    retryAfterSeconds: CAPACITY_RETRY_S,
  })
}
