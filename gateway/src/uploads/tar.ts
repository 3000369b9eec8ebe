/**
 * Packs files as a tar archive, the same bytes for the same files: no times, owners or other traces of this machine.
 * A path that does not fit into a plain header is in an extended header before it (POSIX pax).
 */
const BLOCK = 512

type TarFile = { path: string; content: Buffer; isExecutable: boolean }

export function packTar(files: readonly TarFile[]): Buffer {
  const sorted = files.toSorted((a, b) => Buffer.compare(Buffer.from(a.path), Buffer.from(b.path)))
  const blocks = sorted.flatMap(({ path, content, isExecutable }) => {
    const needsPax = Buffer.byteLength(path) > 100 || /[^\x20-\x7e]/.test(path)
    const pax = needsPax ? paxRecord('path', path) : undefined
    const name = needsPax ? 'long-name' : path
    return [
      ...(pax ? [header('pax-header', pax.length, 'x', 0o644), pax, padding(pax.length)] : []),
      header(name, content.length, '0', isExecutable ? 0o755 : 0o644),
      content,
      padding(content.length),
    ]
  })
  return Buffer.concat([...blocks, Buffer.alloc(2 * BLOCK)])
}

function header(name: string, size: number, type: string, mode: number): Buffer {
  const block = Buffer.alloc(BLOCK)
  block.write(name, 0, 100)
  block.write(octal(mode, 8), 100)
  block.write(octal(0, 8), 108)
  block.write(octal(0, 8), 116)
  block.write(octal(size, 12), 124)
  block.write(octal(0, 12), 136)
  block.write(' '.repeat(8), 148)
  block.write(type, 156)
  block.write('ustar\x0000', 257)
  const checksum = block.reduce((sum, byte) => sum + byte, 0)
  block.write(`${checksum.toString(8).padStart(6, '0')}\0 `, 148)
  return block
}

const octal = (value: number, length: number): string => `${value.toString(8).padStart(length - 1, '0')}\0`

const padding = (size: number): Buffer => Buffer.alloc((BLOCK - (size % BLOCK)) % BLOCK)

/** `<length> key=value\n`, where the length counts its own digits. */
function paxRecord(key: string, value: string): Buffer {
  const rest = Buffer.byteLength(` ${key}=${value}\n`)
  let length = rest + String(rest).length
  if (rest + String(length).length !== length) length = rest + String(length).length
  return Buffer.from(`${length} ${key}=${value}\n`)
}
