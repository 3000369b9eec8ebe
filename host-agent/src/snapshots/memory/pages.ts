/**
 * Finds the pages of a VM that differ from its base. QEMU maps the memory file of the base privately, so a page that
 * the VM has written is a private copy. /proc/PID/pagemap shows which pages are private.
 *
 * Private pages that are zero are included: a page that has data in the base and is zero now must be saved as zero, or
 * the data of the base would reappear.
 */
import { closeSync, openSync, readFileSync, readlinkSync, readSync, statSync } from 'node:fs'

export const PAGE_BYTES = 4096

/** A part of the guest memory as mapped in the QEMU process. `page` is its first page in the memory file. */
export type Mapping = { address: number; page: number; pages: number }
export type Run = { page: number; pages: number }

const PAGEMAP_ENTRY_BYTES = 8
/** Bits in the high word of an entry: present or swapped out; and page of the file, not private. */
const PRESENT_OR_SWAPPED = 0xc0000000
const FILE_PAGE = 0x20000000

/** Finds where the process has mapped the memory file that it has open as `fd`. The kernel may split the mapping. */
export function findMappings(pid: number, fd: number): Mapping[] {
  const { ino } = statSync(`/proc/${pid}/fd/${fd}`)
  const name = readlinkSync(`/proc/${pid}/fd/${fd}`)
  const mappings: Mapping[] = []
  for (const line of readFileSync(`/proc/${pid}/maps`, 'utf8').split('\n')) {
    const [range, mode, offset, , inode] = line.split(/\s+/)
    // On some file systems the device number differs between stat and maps, so inode and name are compared.
    if (Number(inode) !== ino || !line.endsWith(` ${name}`) || mode?.[3] !== 'p') continue
    const [from, to] = range!.split('-').map((hex) => Number.parseInt(hex, 16)) as [number, number]
    const pages = (to - from) / PAGE_BYTES
    mappings.push({ address: from, page: Number.parseInt(offset!, 16) / PAGE_BYTES, pages })
  }
  return mappings.sort((a, b) => a.page - b.page)
}

/** The private pages of a mapping, as runs in order. Page numbers are relative to the start of the mapping. */
export function findPrivateRuns(pid: number, { address, pages }: Mapping): Run[] {
  const entries = readPagemap(pid, address, pages)
  const runs: Run[] = []
  let from = -1
  for (let page = 0; page <= pages; page++) {
    const high = page < pages ? entries[page * 2 + 1]! : 0
    const isPrivate = (high & PRESENT_OR_SWAPPED) !== 0 && (high & FILE_PAGE) === 0
    if (isPrivate && from < 0) from = page
    if (isPrivate || from < 0) continue
    runs.push({ page: from, pages: page - from })
    from = -1
  }
  return runs
}

/** Entries have 64 bits; here each is two 32-bit words, the low word first. */
function readPagemap(pid: number, address: number, pages: number): Uint32Array {
  const entries = new Uint32Array(pages * 2)
  const bytes = new Uint8Array(entries.buffer)
  const fd = openSync(`/proc/${pid}/pagemap`, 'r')
  try {
    const start = (address / PAGE_BYTES) * PAGEMAP_ENTRY_BYTES
    for (let done = 0; done < bytes.length; ) {
      const got = readSync(fd, bytes, done, bytes.length - done, start + done)
      if (got === 0) throw new Error(`process ${pid} exited while its memory was read`)
      done += got
    }
  } finally {
    closeSync(fd)
  }
  return entries
}
