/**
 * Copies of a base's memory that no process can change. QEMU before 8.2 opens the memory file for writing even when it
 * maps it privately, so with a shared file one clone could change the memory of all others. A memfd with all seals set can
 * be opened for writing, but every write to it fails.
 *
 * All clones of a base share one copy, and with it its pages.
 */
import { closeSync, fstatSync, openSync, readSync, statSync, writeSync } from 'node:fs'
import { createMemoryFile, sealMemoryFile, seekData, seekHole } from '../../ffi/memory-file.ts'

const CHUNK_BYTES = 4 * 1024 * 1024
/** More than the number of bases that a busy host uses at the same time. */
const COPIES_MAX = 16

/** `version` identifies the file that was copied and its modification time. */
type Copy = { fd: number; version: string }
/** By the path of the original, least recently used first. */
const copies = new Map<string, Copy>()

/** Returns a descriptor that stays open here for later clones; the child gets its own duplicate. */
export function openSealedCopy(path: string): number {
  const stat = statSync(path)
  const version = `${stat.dev} ${stat.ino} ${stat.mtimeMs}`
  const cached = copies.get(path)
  if (cached?.version === version) {
    copies.delete(path)
    copies.set(path, cached)
    return cached.fd
  }
  if (cached) closeCopy(path)
  const fd = copy(path)
  copies.set(path, { fd, version })
  for (const [oldest] of copies) if (copies.size > COPIES_MAX) closeCopy(oldest)
  return fd
}

/** Clones that map the copy keep its memory; only the launcher's descriptor is closed. */
function closeCopy(path: string): void {
  const cached = copies.get(path)
  if (cached) closeSync(cached.fd)
  copies.delete(path)
}

function copy(path: string): number {
  const from = openSync(path, 'r')
  const { size } = fstatSync(from)
  const to = createMemoryFile('warren-ram', size)
  try {
    copyData(from, to, size)
    sealMemoryFile(to)
    return to
  } catch (error) {
    closeSync(to)
    throw error
  } finally {
    closeSync(from)
  }
}

/** Copies data and skips holes: a guest with 1 GiB has typically used a tenth of it. */
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
