/**
 * Several layers of a disk become one that says the same: of each cluster the newest word counts. A word is data or
 * zeros; a layer that has neither lets the one below it speak, and where none of them has, the merged layer has none.
 *
 * The layers are never written again, and neither is the result: it is laid out from front to back in one go (header,
 * L1 table, refcounts, L2 tables, data). Synchronous and busy: for a worker (snapshots/worker-pool.ts).
 */
import { closeSync, openSync, readSync } from 'node:fs'
import { createChecksumWriter } from '../../../snapshots/checksum-writer.ts'
import type { Checksums } from '../../../snapshots/checksums.ts'
import { CLUSTER, L1_ENTRY_COVERS, parseHeader, renderHeader, TABLE_ENTRIES } from './header.ts'

/** The cluster is stored once, which is always so here. */
const COPIED = 1n << 63n
const COMPRESSED = 1n << 62n
const ZERO = 1n
const OFFSET = 0x00ff_ffff_ffff_fe00n
/** Of 16 bits each. */
const REFCOUNTS_PER_CLUSTER = CLUSTER / 2

type Word = { layer: number; offset: number } | 'zeros'
/** By the number of the cluster in its L2 table. */
type Table = Map<number, Word>

/** `files`: the oldest first. */
export function mergeLayers({ files, out, backing }: { files: string[]; out: string; backing: string }): Checksums {
  const layers = files.map((file) => openSync(file, 'r'))
  try {
    const { size, tables } = readWords(layers)
    return writeMerged({ size, tables, layers, out, backing })
  } finally {
    for (const layer of layers) closeSync(layer)
  }
}

function readWords(layers: number[]): { size: number; tables: Map<number, Table> } {
  const tables = new Map<number, Table>()
  let size = 0
  for (const [layer, fd] of layers.entries()) {
    const header = parseHeader(readAt(fd, 0, CLUSTER))
    size = header.size // A disk only ever grows: the newest is the largest.
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

type Plan = { size: number; tables: Map<number, Table>; layers: number[]; out: string; backing: string }

function writeMerged({ size, tables, layers, out, backing }: Plan): Checksums {
  const order = [...tables.keys()].sort((a, b) => a - b)
  const places = plan(size, tables, order)
  const writer = createChecksumWriter(out)
  try {
    const { l1Entries, l1Offset, refcountsOffset, refcountsClusters } = places
    const header = { size, l1Entries, l1Offset, refcountsOffset, refcountsClusters }
    writer.write(renderHeader({ ...header, backing: { file: backing, format: 'qcow2' } }))
    writer.write(renderL1(places, order))
    writer.write(renderRefcounts(places))
    let next = places.dataOffset
    for (const i of order) {
      const l2 = Buffer.alloc(CLUSTER)
      for (const [entry, word] of sorted(tables.get(i)!)) {
        l2.writeBigUInt64BE(word === 'zeros' ? ZERO : BigInt(next) | COPIED, entry * 8)
        if (word !== 'zeros') next += CLUSTER
      }
      writer.write(l2)
    }
    for (const i of order) {
      for (const [, word] of sorted(tables.get(i)!)) {
        if (word !== 'zeros') writer.write(readAt(layers[word.layer]!, word.offset, CLUSTER))
      }
    }
    return writer.finish(true)
  } finally {
    writer.close()
  }
}

const sorted = (table: Table): [number, Word][] => [...table].sort(([a], [b]) => a - b)

type Places = ReturnType<typeof plan>

function plan(size: number, tables: Map<number, Table>, order: number[]) {
  const l1Entries = Math.ceil(size / L1_ENTRY_COVERS)
  const l1Clusters = Math.ceil((l1Entries * 8) / CLUSTER)
  const data = order.reduce((sum, i) => sum + [...tables.get(i)!.values()].filter((word) => word !== 'zeros').length, 0)
  // The refcounts count their own clusters, too.
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

function renderL1({ l1Clusters, l2Offset }: Places, order: number[]): Buffer {
  const l1 = Buffer.alloc(l1Clusters * CLUSTER)
  for (const [n, i] of order.entries()) l1.writeBigUInt64BE(BigInt(l2Offset + n * CLUSTER) | COPIED, i * 8)
  return l1
}

/** Every cluster of the file is used once. */
function renderRefcounts({ refcountsClusters, blocks, blocksOffset, total }: Places): Buffer {
  const bytes = Buffer.alloc((refcountsClusters + blocks) * CLUSTER)
  for (let i = 0; i < blocks; i++) bytes.writeBigUInt64BE(BigInt(blocksOffset + i * CLUSTER), i * 8)
  const first = refcountsClusters * CLUSTER
  for (let cluster = 0; cluster < total; cluster++) bytes.writeUInt16BE(1, first + cluster * 2)
  return bytes
}

function readAt(fd: number, offset: number, bytes: number): Buffer {
  const buffer = Buffer.alloc(bytes)
  for (let done = 0; done < bytes; ) {
    const got = readSync(fd, buffer, done, bytes - done, offset + done)
    // QEMU does not write the end of a last cluster that was never touched: it reads as zeros.
    if (got === 0) break
    done += got
  }
  return buffer
}
