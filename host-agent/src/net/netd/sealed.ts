/**
 * Memory files that nobody can write to: QEMU before 8.2 insists on opening its memory for writing even where it maps
 * it privately, and one clone could then change all others. A copy in a memfd with every seal set lets itself be
 * opened so and refuses every write.
 *
 * Copies are kept while they are used: the clones of one base share one, and with it its pages.
 */
import { closeSync, fstatSync, openSync, readSync, statSync, writeSync } from 'node:fs'
import { addSeals, createMemoryFile, seekData, seekHole } from './libc-memory.ts'

/** SEAL, SHRINK, GROW, WRITE. */
const ALL_SEALS = 0xf
const CHUNK_BYTES = 4 * 1024 * 1024
/** More than the bases a busy host uses at once. */
const KEPT_MAX = 16

type Copy = { fd: number; stamp: string }
const copies = new Map<string, Copy>()

/** A descriptor of ours; the child gets its own. */
export function openSealed(path: string): number {
  const stat = statSync(path)
  const stamp = `${stat.dev} ${stat.ino} ${stat.mtimeMs}`
  const kept = copies.get(path)
  if (kept?.stamp === stamp) {
    copies.delete(path)
    copies.set(path, kept) // The last used is the last to go.
    return kept.fd
  }
  if (kept) forget(path)
  const fd = copy(path)
  copies.set(path, { fd, stamp })
  for (const [oldest] of copies) if (copies.size > KEPT_MAX) forget(oldest)
  return fd
}

/** Clones that map it keep it alive; only ours is closed. */
function forget(path: string): void {
  const kept = copies.get(path)
  if (kept) closeSync(kept.fd)
  copies.delete(path)
}

function copy(path: string): number {
  const from = openSync(path, 'r')
  const to = createMemoryFile('warren-ram', fstatSync(from).size)
  try {
    copyData(from, to, fstatSync(from).size)
    addSeals(to, ALL_SEALS)
    return to
  } catch (error) {
    closeSync(to)
    throw error
  } finally {
    closeSync(from)
  }
}

/** Only what is data: a guest of 1 GiB has used a tenth of it. */
function copyData(from: number, to: number, size: number): void {
  const chunk = Buffer.allocUnsafe(CHUNK_BYTES)
  for (let at = seekData(from, 0); at !== undefined && at < size; ) {
    const end = seekHole(from, at)
    while (at < end) {
      const bytes = readSync(from, chunk, 0, Math.min(CHUNK_BYTES, end - at), at)
      if (bytes === 0) break
      for (let done = 0; done < bytes; ) done += writeSync(to, chunk, done, bytes - done, at + done)
      at += bytes
    }
    at = seekData(from, end) as number
  }
}
