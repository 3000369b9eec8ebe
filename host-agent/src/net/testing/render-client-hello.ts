/** A ClientHello by hand: the least that is one, with a name or without. */

export function renderHello(name: string | undefined, extensions: Buffer[] = []): Buffer {
  const all = [...extensions, ...(name === undefined ? [] : [serverName(name)])]
  const body = Buffer.concat([
    Buffer.from([3, 3]),
    Buffer.alloc(32, 7), // random
    Buffer.from([0]), // no session
    vector(2, Buffer.from([0x13, 0x01])),
    vector(1, Buffer.from([0])),
    vector(2, Buffer.concat(all)),
  ])
  return Buffer.concat([Buffer.from([1]), vector(3, body)])
}

/** An encrypted ClientHello, as far as its form goes. */
export const ENCRYPTED_HELLO = Buffer.concat([Buffer.from([0xfe, 0x0d]), vector(2, Buffer.alloc(64, 9))])

/** In records of at most so many bytes. */
export function inRecords(message: Buffer, bytes = message.length): Buffer[] {
  const count = Math.ceil(message.length / bytes)
  return Array.from({ length: count }, (_, index) =>
    Buffer.concat([Buffer.from([22, 3, 1]), vector(2, message.subarray(index * bytes, (index + 1) * bytes))]),
  )
}

const serverName = (name: string): Buffer =>
  Buffer.concat([
    Buffer.from([0, 0]),
    vector(2, vector(2, Buffer.concat([Buffer.from([0]), vector(2, Buffer.from(name, 'latin1'))]))),
  ])

function vector(lengthBytes: number, content: Buffer): Buffer {
  const length = Buffer.alloc(lengthBytes)
  length.writeUIntBE(content.length, 0, lengthBytes)
  return Buffer.concat([length, content])
}
