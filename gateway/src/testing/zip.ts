/** Writes zip files, also such as no honest program writes. */
import { crc32, deflateRawSync } from 'node:zlib'

export type ZipEntry = {
  name: string | Buffer
  content?: Buffer | string
  /** Unix mode with its type bits; 0 leaves the attributes empty. */
  mode?: number
  method?: number
  flags?: number
  /** What the headers state instead of the truth. */
  statedSize?: number
  statedCrc?: number
}

export function makeZip(entries: readonly ZipEntry[], options: { statedCount?: number } = {}): Buffer {
  const locals: Buffer[] = []
  const centrals: Buffer[] = []
  let offset = 0
  for (const entry of entries) {
    const content = Buffer.from(entry.content ?? '')
    const name = Buffer.from(entry.name)
    const method = entry.method ?? 8
    const data = method === 8 ? deflateRawSync(content) : content
    const fields = Buffer.alloc(26)
    fields.writeUInt16LE(20, 0)
    fields.writeUInt16LE(entry.flags ?? 0x800, 2)
    fields.writeUInt16LE(method, 4)
    fields.writeUInt32LE(entry.statedCrc ?? crc32(content), 10)
    fields.writeUInt32LE(data.length, 14)
    fields.writeUInt32LE(entry.statedSize ?? content.length, 18)
    fields.writeUInt16LE(name.length, 22)
    const local = Buffer.concat([Buffer.from('PK\x03\x04', 'latin1'), fields, name, data])
    const rest = Buffer.alloc(14)
    rest.writeUInt32LE(((entry.mode ?? 0o100644) << 16) >>> 0, 6)
    rest.writeUInt32LE(offset, 10)
    const madeBy = Buffer.from([20, 3])
    centrals.push(Buffer.concat([Buffer.from('PK\x01\x02', 'latin1'), madeBy, fields, rest, name]))
    locals.push(local)
    offset += local.length
  }
  const directory = Buffer.concat(centrals)
  const end = Buffer.alloc(22)
  end.write('PK\x05\x06', 'latin1')
  end.writeUInt16LE(options.statedCount ?? entries.length, 8)
  end.writeUInt16LE(options.statedCount ?? entries.length, 10)
  end.writeUInt32LE(directory.length, 12)
  end.writeUInt32LE(offset, 16)
  return Buffer.concat([...locals, directory, end])
}
