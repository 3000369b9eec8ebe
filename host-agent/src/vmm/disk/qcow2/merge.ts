/**
 * Merges several disk layers into one with the same content. Each cluster comes from the newest layer that defines it, as
 * data or as zeros. A cluster that no layer defines stays undefined, so that it is read from what is below them.
 *
 * Neither the layers nor the result are written again, so the result is laid out from front to back in one pass: header,
 * L1 table, refcounts, L2 tables, data. Synchronous and CPU-bound, so it runs in a worker (snapshots/worker-pool.ts).
 */
import { closeSync, openSync, readSync } from 'node:fs'
import { createChecksumWriter } from '../../../snapshots/checksum-writer.ts'
import type { Checksums } from '../../../snapshots/checksums.ts'
import { CLUSTER, L1_ENTRY_COVERS, parseHeader, renderHeader, TABLE_ENTRIES } from './header.ts'

/** The cluster has a refcount of one, as all clusters of disk layers do. */
const COPIED = 1n << 63n
const COMPRESSED = 1n << 62n
const ZERO = 1n
const OFFSET = 0x00ff_ffff_ffff_fe00n
/** A refcount has 16 bits. */
const REFCOUNTS_PER_CLUSTER = CLUSTER / 2

type Cluster = { layer: number; offset: number } | 'zeros'
/** By index in the L2 table. */
type Table = Map<number, Cluster>

/** `files`: the layers, oldest first. */
export function mergeLayers({ files, out, backing }: { files: string[]; out: string; backing: string }): Checksums {
  const layers = files.map((file) => openSync(file, 'r'))
  try {
    const { size, tables } = readTables(layers)
    return writeMerged({ size, tables, layers, out, backing })
  } finally {
    for (const layer of layers) closeSync(layer)
  }
}

/** What each cluster of the disk is, by index of its L2 table and in that. `layers`: open files, oldest first. */
export function readTables(layers: number[]): { size: number; tables: Map<number, Table> } {
  const tables = new Map<number, Table>()
  let size = 0
  for (const [layer, fd] of layers.entries()) {
    const header = parseHeader(readAt(fd, 0, CLUSTER))
    size = header.size // Disks only grow, so the newest is the largest.
    const l1 = readAt(fd, header.l1Offset, header.l1Entries * 8)
    for (let i = 0; i < header.l1Entries; i++) {
      const offset = Number(l1.readBigUInt64BE(i * 8) & OFFSET)
      if (offset === 0) continue
      const table = tables.get(i) ?? new Map()
      readTable(table, readAt(fd, offset, CLUSTER), layer)
      if (table.size > 0) tables.set(i, table)
    }
  }
  return { size, tables }
}

function readTable(table: Table, l2: Buffer, layer: number): void {
  for (let i = 0; i < TABLE_ENTRIES; i++) {
    const entry = l2.readBigUInt64BE(i * 8)
    if (entry === 0n) continue
    if ((entry & COMPRESSED) !== 0n) throw new Error('it has compressed clusters')
    const offset = Number(entry & OFFSET)
    if ((entry & ZERO) !== 0n) table.set(i, 'zeros')
    else if (offset !== 0) table.set(i, { layer, offset })
  }
}

type Merge = { size: number; tables: Map<number, Table>; layers: number[]; out: string; backing: string }

function writeMerged({ size, tables, layers, out, backing }: Merge): Checksums {
  const order = [...tables.keys()].sort((a, b) => a - b)
  const layout = planLayout(size, tables, order)
  const writer = createChecksumWriter(out)
  try {
    const { l1Entries, l1Offset, refcountsOffset, refcountsClusters } = layout
    const header = { size, l1Entries, l1Offset, refcountsOffset, refcountsClusters }
    writer.write(renderHeader({ ...header, backing: { file: backing, format: 'qcow2' } }))
    writer.write(renderL1(layout, order))
    writer.write(renderRefcounts(layout))
    let next = layout.dataOffset
    for (const i of order) {
      const l2 = Buffer.alloc(CLUSTER)
      for (const [entry, cluster] of sorted(tables.get(i)!)) {
        l2.writeBigUInt64BE(cluster === 'zeros' ? ZERO : BigInt(next) | COPIED, entry * 8)
        if (cluster !== 'zeros') next += CLUSTER
      }
      writer.write(l2)
    }
    for (const i of order) {
      for (const [, cluster] of sorted(tables.get(i)!)) {
        if (cluster !== 'zeros') writer.write(readAt(layers[cluster.layer]!, cluster.offset, CLUSTER))
      }
    }
    return writer.finish(true)
  } finally {
    writer.close()
  }
}

const sorted = (table: Table): [number, Cluster][] => [...table].sort(([a], [b]) => a - b)

type Layout = ReturnType<typeof planLayout>

function planLayout(size: number, tables: Map<number, Table>, order: number[]) {
  const l1Entries = Math.ceil(size / L1_ENTRY_COVERS)
  const l1Clusters = Math.ceil((l1Entries * 8) / CLUSTER)
  const data = order.reduce(
    (sum, i) => sum + [...tables.get(i)!.values()].filter((cluster) => cluster !== 'zeros').length,
    0,
  )
  // Refcounts also cover the clusters that hold them, so their number is found by iteration.
  const others = 1 + l1Clusters + order.length + data
  let blocks = 1
  let refcountsClusters = 1
  for (;;) {
    const total = others + blocks + refcountsClusters
    const needed = Math.ceil(total / REFCOUNTS_PER_CLUSTER)
    const tableNeeded = Math.ceil(needed / TABLE_ENTRIES)
    if (needed <= blocks && tableNeeded <= refcountsClusters) break
    blocks = Math.max(blocks, needed)
    refcountsClusters = Math.max(refcountsClusters, tableNeeded)
  }
  const l1Offset = CLUSTER
  const refcountsOffset = l1Offset + l1Clusters * CLUSTER
  const blocksOffset = refcountsOffset + refcountsClusters * CLUSTER
  const l2Offset = blocksOffset + blocks * CLUSTER
  const dataOffset = l2Offset + order.length * CLUSTER
  const total = others + blocks + refcountsClusters
  const counts = { l1Entries, l1Clusters, blocks, refcountsClusters, total }
  return { ...counts, l1Offset, refcountsOffset, blocksOffset, l2Offset, dataOffset }
}

function renderL1({ l1Clusters, l2Offset }: Layout, order: number[]): Buffer {
  const l1 = Buffer.alloc(l1Clusters * CLUSTER)
  for (const [n, i] of order.entries()) l1.writeBigUInt64BE(BigInt(l2Offset + n * CLUSTER) | COPIED, i * 8)
  return l1
}

/** Every cluster of the file has a refcount of one. */
function renderRefcounts({ refcountsClusters, blocks, blocksOffset, total }: Layout): Buffer {
  const bytes = Buffer.alloc((refcountsClusters + blocks) * CLUSTER)
  for (let i = 0; i < blocks; i++) bytes.writeBigUInt64BE(BigInt(blocksOffset + i * CLUSTER), i * 8)
  const first = refcountsClusters * CLUSTER
  for (let cluster = 0; cluster < total; cluster++) bytes.writeUInt16BE(1, first + cluster * 2)
  return bytes
}

export function readAt(fd: number, offset: number, bytes: number): Buffer {
  const buffer = Buffer.alloc(bytes)
  for (let done = 0; done < bytes; ) {
    const got = readSync(fd, buffer, done, bytes - done, offset + done)
    // QEMU may leave the end of the last cluster unwritten. It reads as zeros.
    if (got === 0) break
    done += got
  }
  return buffer
}
