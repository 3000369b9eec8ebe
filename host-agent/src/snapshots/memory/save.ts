/** Writes the private pages of a paused VM to a file. Synchronous, so it runs in a worker thread (worker-pool.ts). */
import { closeSync, openSync, readSync } from 'node:fs'
import { createChecksumWriter } from '../checksum-writer.ts'
import { CHUNK_BYTES, type Checksums } from '../checksums.ts'
import { renderIndex, type SavedRun } from './format.ts'
import { findMappings, findPrivateRuns, PAGE_BYTES } from './pages.ts'

export type SavedMemory = Checksums & {
  /** Size of the pages, which is the offset of the index. */
  data_bytes: number
  /** Size of all pages that differ from the base, zero pages included. */
  dirty_bytes: number
}

const ZERO_PAGE = Buffer.alloc(PAGE_BYTES)

export function saveMemory(options: {
  pid: number
  fd: number
  memBytes: number
  file: string
  /** Whether to sync the file; otherwise the caller does it later. */
  sync: boolean
}): SavedMemory {
  const { pid, memBytes } = options
  const mappings = findMappings(pid, options.fd)
  const mapped = mappings.reduce((sum, { pages }) => sum + pages * PAGE_BYTES, 0)
  if (mapped !== memBytes) throw new Error(`QEMU has mapped ${mapped} bytes of memory instead of ${memBytes}`)
  const memory = openSync(`/proc/${pid}/mem`, 'r')
  const writer = createChecksumWriter(options.file)
  const runs: SavedRun[] = []
  const buffer = Buffer.allocUnsafe(CHUNK_BYTES)
  let dirtyPages = 0
  try {
    for (const mapping of mappings) {
      for (const run of findPrivateRuns(pid, mapping)) {
        dirtyPages += run.pages
        for (let done = 0; done < run.pages; ) {
          const pages = Math.min(run.pages - done, CHUNK_BYTES / PAGE_BYTES)
          const piece = buffer.subarray(0, pages * PAGE_BYTES)
          readAll(memory, piece, mapping.address + (run.page + done) * PAGE_BYTES)
          splitByZero(piece, mapping.page + run.page + done, (saved, bytes) => {
            addRun(runs, saved)
            if (!saved.zero) writer.write(bytes)
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
    if (got === 0) throw new Error('unexpected end of the memory of the VM')
    done += got
  }
}

function splitByZero(piece: Buffer, firstPage: number, add: (run: SavedRun, bytes: Buffer) => void): void {
  const pages = piece.length / PAGE_BYTES
  let from = 0
  let zero = isZero(piece, 0)
  for (let page = 1; page <= pages; page++) {
    const next = page < pages ? isZero(piece, page) : !zero
    if (next === zero) continue
    add({ page: firstPage + from, pages: page - from, zero }, piece.subarray(from * PAGE_BYTES, page * PAGE_BYTES))
    from = page
    zero = next
  }
}

/** Compares the first word before the whole page, because most pages that are not zero differ there. */
const isZero = (piece: Buffer, page: number): boolean =>
  piece.readUInt32LE(page * PAGE_BYTES) === 0 &&
  piece.compare(ZERO_PAGE, 0, PAGE_BYTES, page * PAGE_BYTES, (page + 1) * PAGE_BYTES) === 0

function addRun(runs: SavedRun[], run: SavedRun): void {
  const last = runs.at(-1)
  if (last && last.zero === run.zero && last.page + last.pages === run.page) last.pages += run.pages
  else runs.push(run)
}
