/**
 * The format of a saved memory file: all pages that are not zero, followed by an index. The index has one entry of two
 * little-endian 32-bit words per run of pages: the first page; then the number of pages, with the top bit set if the
 * pages are zero.
 */
import type { Run } from './pages.ts'

export type SavedRun = Run & { zero: boolean }

const RUN_BYTES = 8
const ZERO_FLAG = 0x8000_0000

export function renderIndex(runs: readonly SavedRun[]): Buffer {
  const index = Buffer.allocUnsafe(runs.length * RUN_BYTES)
  for (const [i, { page, pages, zero }] of runs.entries()) {
    index.writeUInt32LE(page, i * RUN_BYTES)
    index.writeUInt32LE((pages | (zero ? ZERO_FLAG : 0)) >>> 0, i * RUN_BYTES + 4)
  }
  return index
}

export function parseIndex(index: Buffer): SavedRun[] {
  const runs: SavedRun[] = []
  for (let at = 0; at + RUN_BYTES <= index.length; at += RUN_BYTES) {
    const word = index.readUInt32LE(at + 4)
    runs.push({ page: index.readUInt32LE(at), pages: word & ~ZERO_FLAG, zero: word >= ZERO_FLAG })
  }
  return runs
}
