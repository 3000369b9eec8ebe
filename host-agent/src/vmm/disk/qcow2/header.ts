/** The header of a qcow2 file: version 3 with clusters of 64 KiB, the only kind that Warren writes and reads. */

const CLUSTER_BITS = 16
export const CLUSTER = 1 << CLUSTER_BITS
const HEADER_BYTES = 104
const BACKING_FORMAT = 0xe2792aca
/** Number of entries in a table of one cluster. */
export const TABLE_ENTRIES = CLUSTER / 8
/** An L1 entry covers a cluster of L2 entries, each of which covers a cluster. */
export const L1_ENTRY_COVERS = TABLE_ENTRIES * CLUSTER

export type Backing = { file: string; format: 'raw' | 'qcow2' }
export type Header = {
  /** Virtual size of the disk, in bytes. */
  size: number
  l1Entries: number
  l1Offset: number
  refcountsOffset: number
  refcountsClusters: number
}

export function renderHeader(header: Header & { backing: Backing }): Buffer {
  const name = Buffer.from(header.backing.file)
  const format = Buffer.from(header.backing.format)
  const extension = 8 + Math.ceil(format.length / 8) * 8
  const nameOffset = HEADER_BYTES + extension + 8
  if (nameOffset + name.length > CLUSTER || name.length > 1023)
    throw new Error(`the name of the backing file is too long: ${header.backing.file}`)

  const bytes = Buffer.alloc(CLUSTER)
  bytes.write('QFI\xfb', 0, 'latin1')
  bytes.writeUInt32BE(3, 4)
  bytes.writeBigUInt64BE(BigInt(nameOffset), 8)
  bytes.writeUInt32BE(name.length, 16)
  bytes.writeUInt32BE(CLUSTER_BITS, 20)
  bytes.writeBigUInt64BE(BigInt(header.size), 24)
  bytes.writeUInt32BE(header.l1Entries, 36)
  bytes.writeBigUInt64BE(BigInt(header.l1Offset), 40)
  bytes.writeBigUInt64BE(BigInt(header.refcountsOffset), 48)
  bytes.writeUInt32BE(header.refcountsClusters, 56)
  bytes.writeUInt32BE(4, 96) // refcounts of 2^4 bits
  bytes.writeUInt32BE(HEADER_BYTES, 100)
  bytes.writeUInt32BE(BACKING_FORMAT, HEADER_BYTES)
  bytes.writeUInt32BE(format.length, HEADER_BYTES + 4)
  format.copy(bytes, HEADER_BYTES + 8)
  // An empty extension ends the list. The buffer is zeroed already.
  name.copy(bytes, nameOffset)
  return bytes
}

/** Throws for anything that Warren does not write itself, and for a file that QEMU was in the middle of changing. */
export function parseHeader(bytes: Buffer): Pick<Header, 'size' | 'l1Entries' | 'l1Offset'> {
  if (bytes.toString('latin1', 0, 4) !== 'QFI\xfb' || bytes.readUInt32BE(4) !== 3) throw new Error('not a qcow2 file')
  if (bytes.readUInt32BE(20) !== CLUSTER_BITS) throw new Error('its cluster size is not 64 KiB')
  if (bytes.readUInt32BE(32) !== 0) throw new Error('it is encrypted')
  if (bytes.readUInt32BE(60) !== 0) throw new Error('it has internal snapshots')
  const features = bytes.readBigUInt64BE(72)
  if (features !== 0n) throw new Error(`it has unknown features: 0x${features.toString(16)}`)
  const l1Entries = bytes.readUInt32BE(36)
  if (l1Entries > TABLE_ENTRIES) throw new Error(`its L1 table has ${l1Entries} entries`)
  return {
    size: Number(bytes.readBigUInt64BE(24)),
    l1Entries,
    l1Offset: Number(bytes.readBigUInt64BE(40)),
  }
}
