/** Chooses the host of a new sandbox, reserves memory there (reservations.ts) and allocates an address. */
import { unavailable } from '@warren/kit/failure'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { HostRow, SandboxRow } from '../db/schema.ts'
import { disksUnavailable } from '../disks/attach.ts'
import { allocateAddress } from './addresses.ts'
import { CAPACITY_RETRY_S, noCapacity } from './capacity.ts'
import { canPromise, checkDiskSpace, diskFull, diskPromised, HAS_DISK_SPACE, promisedMib } from './disk-space.ts'
import { emulationRefused, SEPARATES_TENANTS } from './emulation.ts'
import { lockActiveHost, type ReservedShape, reservedMib, reservedSql, reserveOnHost } from './reservations.ts'

export type PlacementRequest = {
  shape: ReservedShape & { id: string }
  diskMib: number
  /** See disk-space.ts. */
  diskOvercommit: number
  image: string
  /** The only host that has the image, if it is that of a template. Its row may not list the image yet. */
  imageHostId?: string | undefined
  region: string
  /** Restricts placement to this host. */
  hostId: string | undefined
  /** Hosts that emulate guests are used although there are several users (emulation.ts). */
  allowTcgTenants: boolean
  /** Only hosts that can mount disks are used. */
  needsDisks: boolean
}
export type Placement = { hostId: string; ip: string; reservedMib: number }

/** `reservedMib`: of each child, 0 if it does not start. */
export type PlacedForks = { ips: string[]; reservedMib: number }

/**
 * A host that cannot take the sandbox after all is tried under a savepoint, and rolling back to it releases the lock on the
 * host's row. A create therefore never holds one host while it waits for another: two creates that try the same hosts in
 * another order would wait for each other.
 */
export async function placeSandbox(tx: Tx, request: PlacementRequest): Promise<Placement> {
  const candidates = await listCandidates(tx, request)
  let isPromised = false
  for (const [index, { id }] of candidates.entries()) {
    // The last one needs none: if it fails, the whole transaction is rolled back.
    const isLast = index === candidates.length - 1
    if (!isLast) await sql`savepoint try_host`.execute(tx)
    const placement = await tryHost(tx, id, request)
    if (typeof placement === 'object') return placement
    isPromised ||= placement === 'promised'
    if (!isLast) await sql`rollback to savepoint try_host`.execute(tx)
  }
  throw isPromised ? diskPromised(request.diskMib) : await explainNoPlacement(tx, request)
}

/** `promised`: the host has memory, but its disk space is promised to others. `full`: it has no memory or no free address. */
async function tryHost(tx: Tx, id: string, request: PlacementRequest): Promise<Placement | 'promised' | 'full'> {
  const host = await reserveOnHost(tx, id, request.shape)
  if (!host) return 'full'
  const promised = promisedMib({ disk_mib: request.diskMib, mem_mib: request.shape.mem_mib })
  if (!(await canPromise(tx, host, promised, request.diskOvercommit))) return 'promised'
  const ip = await allocateAddress(tx, host)
  return ip === undefined ? 'full' : { hostId: host.id, ip, reservedMib: reservedMib(host, request.shape) }
}

/**
 * Allocates `count` addresses on the host of the source, because its snapshot is there, and reserves memory for the
 * children that start at once. Either all children are placed or none.
 */
export async function placeForks(
  tx: Tx,
  source: SandboxRow,
  { count, start, diskOvercommit }: { count: number; start: boolean; diskOvercommit: number },
): Promise<PlacedForks> {
  await checkDiskSpace(tx, source.host_id!)
  const placed: PlacedForks = { ips: [], reservedMib: 0 }
  for (let child = 0; child < count; child++) {
    const host = start ? await reserveOnHost(tx, source.host_id!, source) : await lockActiveHost(tx, source.host_id!)
    const ip = host && (await allocateAddress(tx, host))
    // The children's rows are inserted later, so a search that wraps around the block finds the same address again.
    if (!host || ip === undefined || placed.ips.includes(ip))
      throw noCapacity({ shape: source.shape, region: source.region })
    // Once for all of them: the host is locked from here on.
    if (child === 0 && !(await canPromise(tx, host, promisedMib(source) * count, diskOvercommit))) {
      throw diskPromised(source.disk_mib)
    }
    placed.ips.push(ip)
    if (start) placed.reservedMib = reservedMib(host, source)
  }
  return placed
}

/** The host with the most free memory first. This spreads sandboxes, so the loss of one host affects the fewest. */
async function listCandidates(tx: Tx, request: PlacementRequest): Promise<Pick<HostRow, 'id'>[]> {
  return tx
    .selectFrom('hosts')
    .select('id')
    .where('status', '=', 'active')
    .where('region', '=', request.region)
    .where(hasImage(request))
    .where(sql<boolean>`mem_mib - reserved_mib >= ${reservedSql(request.shape)}`)
    .where(HAS_DISK_SPACE)
    .$if(!request.allowTcgTenants, (query) => query.where(SEPARATES_TENANTS))
    .$if(request.needsDisks, (query) => query.where('disks', '=', true))
    .$if(request.hostId !== undefined, (query) => query.where('id', '=', request.hostId!))
    .orderBy(sql`mem_mib - reserved_mib`, 'desc')
    .orderBy('id')
    .limit(8)
    .execute()
}

const hasImage = ({ image, imageHostId }: PlacementRequest) =>
  imageHostId === undefined ? sql<boolean>`${image} = any (rootfses)` : sql<boolean>`id = ${imageHostId}`

/** Distinguishes what the operator has to change, and an image that is still being built, from a lack of capacity. */
async function explainNoPlacement(tx: Tx, request: PlacementRequest): Promise<Error> {
  const hosts = await tx
    .selectFrom('hosts')
    .select(['rootfses', 'images', 'disks', SEPARATES_TENANTS.as('separates'), HAS_DISK_SPACE.as('hasSpace')])
    .where('status', '=', 'active')
    .where('region', '=', request.region)
    .$if(request.hostId !== undefined, (query) => query.where('id', '=', request.hostId!))
    .execute()
  if (!request.allowTcgTenants && hosts.length > 0 && hosts.every(({ separates }) => !separates))
    return emulationRefused()
  if (request.needsDisks && hosts.length > 0 && hosts.every(({ disks }) => !disks)) return disksUnavailable()
  if (hosts.length > 0 && hosts.every(({ hasSpace }) => !hasSpace)) return diskFull()
  if (
    request.imageHostId !== undefined ||
    hosts.length === 0 ||
    hosts.some((host) => host.rootfses.includes(request.image))
  )
    return noCapacity({ ...request, shape: request.shape.id })
  const images = hosts.flatMap((host) => host.images.filter((image) => image.name === request.image))
  const building = images.some((image) => image.state === 'building')
  return unavailable(`rootfs ${request.image} is ${building ? 'still being built' : 'not available on any host'}`, {
    retryAfterSeconds: CAPACITY_RETRY_S,
  })
}
