/**
 * Writes a cpio archive in the `newc` format, which the kernel unpacks into its initial root file system (see "buffer
 * format" in the kernel documentation on early userspace). Times, owners and inode numbers are fixed, so that the same
 * content gives the same bytes.
 */

export type CpioEntry =
  | { type: 'directory'; path: string; mode?: number }
  | { type: 'file'; path: string; mode?: number; data: Uint8Array }
  | { type: 'symlink'; path: string; target: string }
  | { type: 'character-device'; path: string; mode?: number; major: number; minor: number }

const TYPE_BITS = { directory: 0o040000, file: 0o100000, symlink: 0o120000, 'character-device': 0o020000 } as const
const DEFAULT_MODE = { directory: 0o755, file: 0o644, symlink: 0o777, 'character-device': 0o600 } as const
const TRAILER = 'TRAILER!!!'

export function renderCpio(entries: readonly CpioEntry[]): Buffer {
  // Each entry has its own inode number, because the kernel treats entries with the same number as hard links.
  const parts = entries.flatMap((entry, index) => renderEntry(entry, index + 1))
  return Buffer.concat([...parts, ...renderRecord({ name: TRAILER, inode: 0, mode: 0, links: 1 }, Buffer.alloc(0))])
}

function renderEntry(entry: CpioEntry, inode: number): Buffer[] {
  const name = entry.path.replace(/^\/+/, '')
  if (name === '' || name === TRAILER)
    throw new Error(`${JSON.stringify(entry.path)} is not allowed as a name in the archive`)
  const mode = 'mode' in entry && entry.mode !== undefined ? entry.mode : DEFAULT_MODE[entry.type]
  const device = entry.type === 'character-device' ? { major: entry.major, minor: entry.minor } : undefined
  const links = entry.type === 'directory' ? 2 : 1
  return renderRecord({ name, inode, mode: TYPE_BITS[entry.type] | mode, links, device }, dataOf(entry))
}

function dataOf(entry: CpioEntry): Buffer {
  if (entry.type === 'symlink') return Buffer.from(entry.target)
  return entry.type === 'file' ? Buffer.from(entry.data) : Buffer.alloc(0)
}

type Record = { name: string; inode: number; mode: number; links: number; device?: { major: number; minor: number } }

function renderRecord({ name, inode, mode, links, device }: Record, data: Buffer): Buffer[] {
  const encodedName = Buffer.from(`${name}\0`)
  const fields = [
    inode,
    mode,
    0, // uid
    0, // gid
    links,
    0, // modification time
    data.length,
    0, // device of the file, major and minor
    0,
    device?.major ?? 0,
    device?.minor ?? 0,
    encodedName.length,
    0, // checksum, unused in this format
  ]
  const header = Buffer.from(`070701${fields.map((field) => field.toString(16).padStart(8, '0')).join('')}`)
  return [header, encodedName, padding(header.length + encodedName.length), data, padding(data.length)]
}

/** Names and data are padded to a multiple of four bytes. */
const padding = (length: number): Buffer => Buffer.alloc((4 - (length % 4)) % 4)
