/**
 * Puts saved pages into the memory of a machine that has not begun to run, where they become private copies as if it
 * had written them itself. Every chunk is checked before its pages are used; a machine that got a wrong one must be
 * thrown away. Synchronous and busy: for a worker (workers.ts).
 */
import { closeSync, fstatSync, openSync, readSync, writeSync } from 'node:fs'
import { CHUNK_BYTES, checkChunk, checkSize, readChunk } from '../sums.ts'
import { parseIndex, type SavedRun } from './format.ts'
import { findMappings, type Mapping, PAGE_BYTES } from './pages.ts'
import type { SavedMemory } from './save.ts'

/** Undefined when all is in place, else what is wrong with the file. */
export function loadMemory(options: { pid: number; fd: number; file: string; saved: SavedMemory }): string | undefined {
  const { saved } = options
  const file = openSync(options.file, 'r')
  const memory = openSync(`/proc/${options.pid}/mem`, 'r+')
  try {
    const wrong = checkSize(file, saved) ?? checkIndexChunks(file, saved)
    if (wrong) return wrong
    const index = Buffer.allocUnsafe(saved.bytes - saved.data_bytes)
    readSync(file, index, 0, index.length, saved.data_bytes)
    const place = createPlacer(memory, findMappings(options.pid, options.fd))
    return placeRuns(file, saved, parseIndex(index), place)
  } finally {
    closeSync(memory)
    closeSync(file)
  }
}

/** The index is used before the pages, so its chunks are checked first; the one it shares with pages is checked twice. */
function checkIndexChunks(file: number, saved: SavedMemory): string | undefined {
  const chunk = Buffer.allocUnsafe(CHUNK_BYTES)
  for (let i = Math.floor(saved.data_bytes / CHUNK_BYTES); i < saved.crcs.length; i++) {
    const wrong = checkChunk(readChunk(file, chunk, i * CHUNK_BYTES, fstatSync(file).size), i, saved.crcs[i]!)
    if (wrong) return wrong
  }
  return undefined
}

type Place = (page: number, bytes: Buffer) => void

function placeRuns(file: number, saved: SavedMemory, runs: SavedRun[], place: Place): string | undefined {
  const zeros = Buffer.alloc(CHUNK_BYTES)
  const chunk = Buffer.allocUnsafe(CHUNK_BYTES)
  let index = -1
  let held: Buffer = Buffer.alloc(0)
  for (const run of runs) {
    let { page, pages } = run
    while (pages > 0) {
      if (run.zero) {
        const piece = Math.min(pages, CHUNK_BYTES / PAGE_BYTES)
        place(page, zeros.subarray(0, piece * PAGE_BYTES))
        page += piece
        pages -= piece
        continue
      }
      if (held.length === 0) {
        index++
        if (index * CHUNK_BYTES >= saved.data_bytes) return 'its index names more pages than it has'
        held = readChunk(file, chunk, index * CHUNK_BYTES, saved.bytes)
        const wrong = checkChunk(held, index, saved.crcs[index]!)
        if (wrong) return wrong
        held = held.subarray(0, Math.min(held.length, saved.data_bytes - index * CHUNK_BYTES))
      }
      // Chunks are whole pages: a page never lies in two.
      const piece = Math.min(pages, held.length / PAGE_BYTES)
      place(page, held.subarray(0, piece * PAGE_BYTES))
      held = held.subarray(piece * PAGE_BYTES)
      page += piece
      pages -= piece
    }
  }
  return undefined
}

function createPlacer(memory: number, mappings: Mapping[]): Place {
  return (page, bytes) => {
    const mapping = mappings.find((one) => page >= one.page && page < one.page + one.pages)
    const end = page + bytes.length / PAGE_BYTES
    if (!mapping || end > mapping.page + mapping.pages) throw new Error(`page ${page} is not in the machine's memory`)
    const at = mapping.address + (page - mapping.page) * PAGE_BYTES
    for (let done = 0; done < bytes.length; ) done += writeSync(memory, bytes, done, bytes.length - done, at + done)
  }
}
