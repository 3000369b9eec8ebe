/**
 * Which pages of a machine's memory are its own: QEMU maps the base's memory privately, so a page it has written to is
 * a private copy, and the kernel tells which those are (platform 4.3).
 *
 * Zero pages are told apart by whoever reads them: a page that was something in the base and is zero now must be
 * remembered as such, or the base's old bytes would come back.
 */
import { closeSync, openSync, readFileSync, readlinkSync, readSync, statSync } from 'node:fs'

export const PAGE_BYTES = 4096

/** A piece of guest memory in the process: `page` is its first page in the guest's memory file. */
export type Mapping = { address: number; page: number; pages: number }
export type Run = { page: number; pages: number }

const PAGEMAP_ENTRY_BYTES = 8
/** In the high word of an entry: present or swapped out, and not a page of the file. */
const PRESENT_OR_SWAPPED = 0xc0000000
const OF_THE_FILE = 0x20000000

/** Where the memory file that the process has open as `fd` is mapped; the kernel may have split it into several. */
export function findMappings(pid: number, fd: number): Mapping[] {
  const { ino } = statSync(`/proc/${pid}/fd/${fd}`)
  const name = readlinkSync(`/proc/${pid}/fd/${fd}`)
  const mappings: Mapping[] = []
  for (const line of readFileSync(`/proc/${pid}/maps`, 'utf8').split('\n')) {
    const [range, mode, offset, , inode] = line.split(/\s+/)
    // The number of the device differs between the two on some file systems; the name does not.
    if (Number(inode) !== ino || !line.endsWith(` ${name}`) || mode?.[3] !== 'p') continue
    const [from, to] = range!.split('-').map((hex) => Number.parseInt(hex, 16)) as [number, number]
    const pages = (to - from) / PAGE_BYTES
    mappings.push({ address: from, page: Number.parseInt(offset!, 16) / PAGE_BYTES, pages })
  }
  return mappings.sort((a, b) => a.page - b.page)
}

/** The machine's own pages within a mapping, as runs in order; numbers are of the mapping's first page on. */
export function findOwnRuns(pid: number, { address, pages }: Mapping): Run[] {
  const entries = readPagemap(pid, address, pages)
  const runs: Run[] = []
  let from = -1
  for (let page = 0; page <= pages; page++) {
    const high = page < pages ? entries[page * 2 + 1]! : 0
    const own = (high & PRESENT_OR_SWAPPED) !== 0 && (high & OF_THE_FILE) === 0
    if (own && from < 0) from = page
    if (own || from < 0) continue
    runs.push({ page: from, pages: page - from })
    from = -1
  }
  return runs
}

/** Entries of 64 bits, here as pairs of 32: the low word first. */
function readPagemap(pid: number, address: number, pages: number): Uint32Array {
  const entries = new Uint32Array(pages * 2)
  const bytes = new Uint8Array(entries.buffer)
  const fd = openSync(`/proc/${pid}/pagemap`, 'r')
  try {
    const start = (address / PAGE_BYTES) * PAGEMAP_ENTRY_BYTES
    for (let done = 0; done < bytes.length; ) {
      const got = readSync(fd, bytes, done, bytes.length - done, start + done)
      if (got === 0) throw new Error(`process ${pid} ended while its memory was read`)
      done += got
    }
  } finally {
    closeSync(fd)
  }
  return entries
}
