/** Writes a zip file. Uploads by `files` have no executable bit, which scripts of a project may need. */
import { crc32, deflateRawSync } from 'node:zlib'
import type { FolderFile } from './folder.ts'

/** The gateway removes one common top folder, which a project may have as well. */
const TOP = 'project/'
const DEFLATE = 8
const UTF8_NAMES = 0x800
const UNIX = 3
const VERSION = 20

export function renderZip(files: readonly FolderFile[]): Buffer {
  const parts: Buffer[] = []
  const directory: Buffer[] = []
  let offset = 0
  for (const { path, content, isExecutable } of files) {
    const name = Buffer.from(TOP + path)
    const data = deflateRawSync(content)
    const fields = Buffer.alloc(26)
    fields.writeUInt16LE(VERSION, 0)
    fields.writeUInt16LE(UTF8_NAMES, 2)
    fields.writeUInt16LE(DEFLATE, 4)
    fields.writeUInt32LE(crc32(content), 10)
    fields.writeUInt32LE(data.length, 14)
    fields.writeUInt32LE(content.length, 18)
    fields.writeUInt16LE(name.length, 22)
    const rest = Buffer.alloc(14)
    rest.writeUInt32LE((isExecutable ? 0o100755 : 0o100644) * 0x1_0000, 6)
    rest.writeUInt32LE(offset, 10)
    const local = Buffer.concat([Buffer.from('PK\x03\x04', 'latin1'), fields, name, data])
    directory.push(Buffer.from('PK\x01\x02', 'latin1'), Buffer.from([VERSION, UNIX]), fields, rest, name)
    parts.push(local)
    offset += local.length
  }
  const size = directory.reduce((sum, part) => sum + part.length, 0)
  const end = Buffer.alloc(22)
  end.write('PK\x05\x06', 'latin1')
  end.writeUInt16LE(files.length, 8)
  end.writeUInt16LE(files.length, 10)
  end.writeUInt32LE(size, 12)
  end.writeUInt32LE(offset, 16)
  return Buffer.concat([...parts, ...directory, end])
}
