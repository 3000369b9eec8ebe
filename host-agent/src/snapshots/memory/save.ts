/** Writes a stopped machine's own pages into a file. Synchronous and busy: for a worker (workers.ts). */
import { closeSync, openSync, readSync } from 'node:fs'
import { createSummingWriter } from '../summing-writer.ts'
import { CHUNK_BYTES, type Sums } from '../sums.ts'
import { renderIndex, type SavedRun } from './format.ts'
import { findMappings, findOwnRuns, PAGE_BYTES } from './pages.ts'

export type SavedMemory = Sums & {
  /** Where the index begins: the bytes of pages before it. */
  data_bytes: number
  /** All pages that differ from the base, zero ones included. */
  dirty_bytes: number
}

const ZERO_PAGE = Buffer.alloc(PAGE_BYTES)

export function saveMemory(options: {
  pid: number
  fd: number
  memBytes: number
  file: string
  /** Whether it must be on disk when this is done; otherwise somebody sees to it later. */
  sync: boolean
}): SavedMemory {
  const { pid, memBytes } = options
  const mappings = findMappings(pid, options.fd)
  const mapped = mappings.reduce((sum, { pages }) => sum + pages * PAGE_BYTES, 0)
  if (mapped !== memBytes) throw new Error(`${mapped} bytes of memory are mapped instead of ${memBytes}`)
  const memory = openSync(`/proc/${pid}/mem`, 'r')
  const writer = createSummingWriter(options.file)
  const runs: SavedRun[] = []
  const buffer = Buffer.allocUnsafe(CHUNK_BYTES)
  let dirtyPages = 0
  try {
    for (const mapping of mappings) {
      for (const own of findOwnRuns(pid, mapping)) {
        dirtyPages += own.pages
        for (let done = 0; done < own.pages; ) {
          const pages = Math.min(own.pages - done, CHUNK_BYTES / PAGE_BYTES)
          const piece = buffer.subarray(0, pages * PAGE_BYTES)
          readAll(memory, piece, mapping.address + (own.page + done) * PAGE_BYTES)
          splitByZero(piece, mapping.page + own.page + done, (run, bytes) => {
            addRun(runs, run)
            if (!run.zero) writer.write(bytes)
          })
          done += pages
        }
      }
    }
    const data_bytes = writer.written()
    writer.write(renderIndex(runs))
    return { ...writer.finish(options.sync), data_bytes, dirty_bytes: dirtyPages * PAGE_BYTES }
  } finally {
    closeSync(memory)
    writer.close()
  }
}

function readAll(fd: number, into: Buffer, at: number): void {
  for (let done = 0; done < into.length; ) {
    const got = readSync(fd, into, done, into.length - done, at + done)
    if (got === 0) throw new Error('the memory ended before its map does')
    done += got
  }
}

function splitByZero(piece: Buffer, firstPage: number, take: (run: SavedRun, bytes: Buffer) => void): void {
  const pages = piece.length / PAGE_BYTES
  let from = 0
  let zero = isZero(piece, 0)
  for (let page = 1; page <= pages; page++) {
    const next = page < pages ? isZero(piece, page) : !zero
    if (next === zero) continue
    take({ page: firstPage + from, pages: page - from, zero }, piece.subarray(from * PAGE_BYTES, page * PAGE_BYTES))
    from = page
    zero = next
  }
}

/** Nearly every page that is not zero says so in its first bytes. */
const isZero = (piece: Buffer, page: number): boolean =>
  piece.readUInt32LE(page * PAGE_BYTES) === 0 &&
  piece.compare(ZERO_PAGE, 0, PAGE_BYTES, page * PAGE_BYTES, (page + 1) * PAGE_BYTES) === 0

function addRun(runs: SavedRun[], run: SavedRun): void {
  const last = runs.at(-1)
  if (last && last.zero === run.zero && last.page + last.pages === run.page) last.pages += run.pages
  else runs.push(run)
}
