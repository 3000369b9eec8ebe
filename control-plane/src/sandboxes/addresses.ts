/**
 * Allocates addresses for sandboxes and builds of templates from the block of a host. Each search continues where the previous one stopped, so a
 * released address stays unused for as long as possible. A late packet or a cached name then does not reach another
 * user's sandbox.
 */
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { HostRow } from '../db/schema.ts'
import { HAS_NOT_ENDED } from './has-not-ended.ts'

/** The host uses the last four addresses of the block for its end of the link to the sandboxes. */
const HOST_ADDRESSES = 4
/** Addresses checked in one query. The first is nearly always free. */
const BATCH = 32

/**
 * Returns undefined when the block is full. The caller has locked the host's row, so only one search per block runs at a
 * time.
 */
export async function allocateAddress(tx: Tx, host: HostRow): Promise<string | undefined> {
  const block = parseCidr(host.cidr ?? '')
  if (!block) return undefined
  let cursor = host.address_cursor
  for (let checked = 0; checked < block.size; checked += BATCH) {
    const offsets = nextOffsets(block, cursor, BATCH)
    if (offsets.length === 0) return undefined
    const free = await takeFree(tx, host.id, block, offsets)
    if (free !== undefined) return renderAddress(block.base + free)
    cursor = offsets.at(-1)! + 1
  }
  return undefined
}

/** The first of these offsets whose address is free, in one statement with the move of the cursor behind it. */
async function takeFree(tx: Tx, hostId: string, block: Block, offsets: number[]): Promise<number | undefined> {
  const addresses = offsets.map((offset) => renderAddress(block.base + offset))
  const { rows } = await sql<{ cursor: number }>`update hosts set address_cursor = free.at + 1
    from (select wanted.at from unnest(${offsets}::bigint[], ${addresses}::inet[]) with ordinality as wanted (at, ip, position)
      where not exists (select from sandboxes where sandboxes.ip = wanted.ip and ${HAS_NOT_ENDED})
        and not exists (select from templates where templates.reserved_mib > 0 and templates.ip = wanted.ip)
      order by wanted.position limit 1) free
    where hosts.id = ${hostId} returning hosts.address_cursor as cursor`.execute(tx)
  return rows[0] && rows[0].cursor - 1
}

export type Block = { base: number; size: number }

export function parseCidr(cidr: string): Block | undefined {
  const [address = '', prefix = ''] = cidr.split('/')
  const bytes = address.split('.').map(Number)
  const bits = Number(prefix)
  if (bytes.length !== 4 || bytes.some((byte) => !(byte >= 0 && byte <= 255)) || !(bits >= 8 && bits <= 28)) {
    return undefined
  }
  const size = 2 ** (32 - bits)
  const number = bytes.reduce((sum, byte) => sum * 256 + byte, 0)
  return { base: number - (number % size), size }
}

/** Up to `count` usable offsets, starting at the cursor and wrapping around the end of the block once. */
export function nextOffsets(block: Block, cursor: number, count: number): number[] {
  const offsets: number[] = []
  for (let step = 0; step < block.size && offsets.length < count; step++) {
    const offset = (cursor + step) % block.size
    if (isUsable(block, offset)) offsets.push(offset)
  }
  return offsets
}

/** Some programs treat x.x.x.0 and x.x.x.255 as network and broadcast addresses, whatever the size of the block. */
function isUsable(block: Block, offset: number): boolean {
  const last = (block.base + offset) % 256
  return offset !== 0 && last !== 0 && last !== 255 && offset < block.size - HOST_ADDRESSES
}

export const renderAddress = (address: number): string =>
  [2 ** 24, 2 ** 16, 2 ** 8, 1].map((unit) => Math.floor(address / unit) % 256).join('.')
