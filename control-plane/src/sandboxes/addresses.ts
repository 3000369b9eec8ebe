/**
 * Allocates addresses for sandboxes and builds of templates from the block of a host. Each search continues where the previous one stopped, so a
 * released address stays unused for as long as possible. A late packet or a cached name then does not reach another
 * user's sandbox.
 */
import type { Tx } from '../db/connect.ts'
import type { HostRow } from '../db/schema.ts'

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
    const free = await findFree(
      tx,
      offsets.map((offset) => renderAddress(block.base + offset)),
    )
    if (free !== undefined) {
      const next = offsets[free]!
      await tx
        .updateTable('hosts')
        .set({ address_cursor: next + 1 })
        .where('id', '=', host.id)
        .execute()
      return renderAddress(block.base + next)
    }
    if (offsets.length === 0) return undefined
    cursor = offsets.at(-1)! + 1
  }
  return undefined
}

async function findFree(tx: Tx, addresses: string[]): Promise<number | undefined> {
  if (addresses.length === 0) return undefined
  const rows = await tx
    .selectFrom('sandboxes')
    .select((eb) => eb.fn<string>('host', ['ip']).as('ip'))
    .where('ip', 'in', addresses)
    .where('status', 'not in', ['destroyed', 'failed'])
    .unionAll((eb) =>
      eb
        .selectFrom('templates')
        .select((of) => of.fn<string>('host', ['ip']).as('ip'))
        .where('reserved_mib', '>', 0)
        .where('ip', 'in', addresses),
    )
    .execute()
  const taken = new Set(rows.map((row) => row.ip))
  const index = addresses.findIndex((address) => !taken.has(address))
  return index === -1 ? undefined : index
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
