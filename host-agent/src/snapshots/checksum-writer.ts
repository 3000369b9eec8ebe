/** Writes a new file sequentially and computes the checksum of every chunk on the way. */
import { closeSync, fdatasyncSync, openSync, writeSync } from 'node:fs'
import { crc32 } from 'node:zlib'
import { CHUNK_BYTES, type Checksums } from './checksums.ts'

export function createChecksumWriter(file: string) {
  const fd = openSync(file, 'wx', 0o400)
  const chunk = Buffer.allocUnsafe(CHUNK_BYTES)
  const crcs: number[] = []
  let filled = 0
  let bytes = 0
  let closed = false
  const flush = () => {
    if (filled === 0) return
    const full = chunk.subarray(0, filled)
    crcs.push(crc32(full))
    for (let done = 0; done < full.length; ) done += writeSync(fd, full, done, full.length - done)
    filled = 0
  }
  return {
    write(data: Buffer) {
      for (let done = 0; done < data.length; ) {
        const piece = Math.min(data.length - done, CHUNK_BYTES - filled)
        data.copy(chunk, filled, done, done + piece)
        filled += piece
        done += piece
        bytes += piece
        if (filled === CHUNK_BYTES) flush()
      }
    },
    written: () => bytes,
    finish(sync: boolean): Checksums {
      flush()
      if (sync) fdatasyncSync(fd)
      return { bytes, crcs }
    },
    close() {
      if (!closed) closeSync(fd)
      closed = true
    },
  }
}
