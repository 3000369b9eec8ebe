/**
 * Writes a disk chain as one raw file. Clusters of zeros are left out, so the file is as sparse as the disk. The layers were
 * written by QEMU processes and are read with our own parser, which follows no reference to other files. Synchronous, so it
 * runs in a worker (snapshots/worker-pool.ts).
 */
import { closeSync, fstatSync, ftruncateSync, openSync, writeSync } from 'node:fs'
import { CLUSTER, TABLE_ENTRIES } from './header.ts'
import { readAt, readTables } from './merge.ts'

const ZEROS = Buffer.alloc(CLUSTER)

/** `image`: the raw file at the bottom. `files`: the layers above it, oldest first. */
export function flattenDisk({ image, files, out }: { image: string; files: string[]; out: string }): void {
  const source = openSync(image, 'r')
  const layers = files.map((file) => openSync(file, 'r'))
  const target = openSync(out, 'wx+', 0o600)
  try {
    const imageBytes = fstatSync(source).size
    const { size, tables } = readTables(layers)
    if (size < imageBytes) throw new Error(`the disk has ${size} bytes, less than its image with ${imageBytes}`)
    ftruncateSync(target, size)
    const write = (bytes: Buffer, offset: number) => {
      // What is not written is a hole, which reads as zeros.
      if (!bytes.equals(ZEROS)) writeSync(target, bytes, 0, Math.min(CLUSTER, size - offset), offset)
    }
    for (let offset = 0; offset < imageBytes; offset += CLUSTER) {
      const at = offset / CLUSTER
      const isCovered = tables.get(Math.floor(at / TABLE_ENTRIES))?.has(at % TABLE_ENTRIES)
      if (!isCovered) write(readAt(source, offset, CLUSTER), offset)
    }
    for (const [i, table] of tables) {
      for (const [j, cluster] of table) {
        if (cluster === 'zeros') continue
        write(readAt(layers[cluster.layer]!, cluster.offset, CLUSTER), (i * TABLE_ENTRIES + j) * CLUSTER)
      }
    }
  } finally {
    for (const fd of [source, ...layers, target]) closeSync(fd)
  }
}
