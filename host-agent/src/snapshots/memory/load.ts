/**
 * Writes saved pages into the memory of a VM that has not started to run. They become private pages, as if the VM had
 * written them itself. Every chunk is checked before its pages are used; if one is damaged, the VM must be discarded.
 * Synchronous, so it runs in a worker thread (worker-pool.ts).
 */
import { closeSync, fstatSync, openSync, readSync, writeSync } from 'node:fs'
import { CHUNK_BYTES, checkChunk, checkSize, readChunk } from '../checksums.ts'
import { parseIndex, type SavedRun } from './format.ts'
import { findMappings, type Mapping, PAGE_BYTES } from './pages.ts'
import type { SavedMemory } from './save.ts'

/** Returns undefined if all pages were written, otherwise what is wrong with the file. */
export function loadMemory(options: { pid: number; fd: number; file: string; saved: SavedMemory }): string | undefined {
  const { saved } = options
  const file = openSync(options.file, 'r')
  const memory = openSync(`/proc/${options.pid}/mem`, 'r+')
  try {
    const wrong = checkSize(file, saved) ?? checkIndexChunks(file, saved)
    if (wrong) return wrong
    const index = Buffer.allocUnsafe(saved.bytes - saved.data_bytes)
    readSync(file, index, 0, index.length, saved.data_bytes)
    const writePages = createPageWriter(memory, findMappings(options.pid, options.fd))
    return writeRuns(file, saved, parseIndex(index), writePages)
  } finally {
    closeSync(memory)
    closeSync(file)
  }
}

/** The index is used before the pages, so its chunks are checked first. A chunk that also has pages is checked twice. */
function checkIndexChunks(file: number, saved: SavedMemory): string | undefined {
  const chunk = Buffer.allocUnsafe(CHUNK_BYTES)
  for (let i = Math.floor(saved.data_bytes / CHUNK_BYTES); i < saved.crcs.length; i++) {
    const wrong = checkChunk(readChunk(file, chunk, i * CHUNK_BYTES, fstatSync(file).size), i, saved.crcs[i]!)
    if (wrong) return wrong
  }
  return undefined
}

type WritePages = (firstPage: number, bytes: Buffer) => void

function writeRuns(file: number, saved: SavedMemory, runs: SavedRun[], writePages: WritePages): string | undefined {
  const zeros = Buffer.alloc(CHUNK_BYTES)
  const chunk = Buffer.allocUnsafe(CHUNK_BYTES)
  let index = -1
  /** The pages of the current chunk that are not written yet. */
  let rest: Buffer = Buffer.alloc(0)
  for (const run of runs) {
    let { page, pages } = run
    while (pages > 0) {
      if (run.zero) {
        const count = Math.min(pages, CHUNK_BYTES / PAGE_BYTES)
        writePages(page, zeros.subarray(0, count * PAGE_BYTES))
        page += count
        pages -= count
        continue
      }
      if (rest.length === 0) {
        index++
        if (index * CHUNK_BYTES >= saved.data_bytes) return 'the index lists more pages than the file has'
        rest = readChunk(file, chunk, index * CHUNK_BYTES, saved.bytes)
        const wrong = checkChunk(rest, index, saved.crcs[index]!)
        if (wrong) return wrong
        rest = rest.subarray(0, Math.min(rest.length, saved.data_bytes - index * CHUNK_BYTES))
      }
      // A chunk is a whole number of pages, so no page spans two chunks.
      const count = Math.min(pages, rest.length / PAGE_BYTES)
      writePages(page, rest.subarray(0, count * PAGE_BYTES))
      rest = rest.subarray(count * PAGE_BYTES)
      page += count
      pages -= count
    }
  }
  return undefined
}

function createPageWriter(memory: number, mappings: Mapping[]): WritePages {
  return (page, bytes) => {
    const mapping = mappings.find((one) => page >= one.page && page < one.page + one.pages)
    const end = page + bytes.length / PAGE_BYTES
    if (!mapping || end > mapping.page + mapping.pages) throw new Error(`page ${page} is outside the memory of the VM`)
    const at = mapping.address + (page - mapping.page) * PAGE_BYTES
    for (let done = 0; done < bytes.length; ) done += writeSync(memory, bytes, done, bytes.length - done, at + done)
  }
}
