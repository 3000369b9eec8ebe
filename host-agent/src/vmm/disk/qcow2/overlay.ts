/**
 * Creates an empty qcow2 overlay. It has four clusters, and writing them directly takes 1 ms. `qemu-img create` makes the
 * same file in 10 ms, nearly all of it process start.
 *
 * The name of the backing file in the header is only information. QEMU gets its whole disk chain on the command line
 * (args.ts) and never follows the name.
 */
import { open } from 'node:fs/promises'
import { type Backing, CLUSTER, L1_ENTRY_COVERS, renderHeader } from './header.ts'

export async function createOverlay(
  file: string,
  options: { sizeMib: number; backing: Backing; owner?: number },
): Promise<void> {
  const { bytes, l1Offset } = renderOverlay(options)
  const handle = await open(file, 'wx', 0o600)
  try {
    await handle.writeFile(bytes)
    // The L1 table is all zeros, so a hole is enough.
    await handle.truncate(l1Offset + CLUSTER)
    // Through the handle: QEMU could have replaced the file under its name.
    if (options.owner !== undefined) await handle.chown(options.owner, options.owner)
  } finally {
    await handle.close()
  }
}

/** Clusters: header, refcount table, refcount block, L1 table. */
export function renderOverlay({ sizeMib, backing }: { sizeMib: number; backing: Backing }) {
  const size = sizeMib * 1024 * 1024
  const l1Entries = Math.ceil(size / L1_ENTRY_COVERS)
  if (l1Entries * 8 > CLUSTER) throw new Error(`a disk of ${sizeMib} MiB needs a larger L1 table than one cluster`)
  const bytes = Buffer.alloc(3 * CLUSTER)
  const l1Offset = 3 * CLUSTER
  const header = { size, backing, l1Entries, l1Offset, refcountsOffset: CLUSTER, refcountsClusters: 1 }
  renderHeader(header).copy(bytes)
  bytes.writeBigUInt64BE(BigInt(2 * CLUSTER), CLUSTER) // the one refcount block
  for (let cluster = 0; cluster < 4; cluster++) bytes.writeUInt16BE(1, 2 * CLUSTER + 2 * cluster)
  return { bytes, l1Offset }
}
