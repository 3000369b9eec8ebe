/** Renders a minimal TLS ClientHello, with or without a server name. */

export function renderClientHello(name: string | undefined, extensions: Buffer[] = []): Buffer {
  const all = [...extensions, ...(name === undefined ? [] : [serverName(name)])]
  const body = Buffer.concat([
    Buffer.from([3, 3]),
    Buffer.alloc(32, 7), // random
    Buffer.from([0]), // empty session id
    vector(2, Buffer.from([0x13, 0x01])),
    vector(1, Buffer.from([0])),
    vector(2, Buffer.concat(all)),
  ])
  return Buffer.concat([Buffer.from([1]), vector(3, body)])
}

/** The extension of an encrypted ClientHello, with arbitrary content. */
export const ENCRYPTED_CLIENT_HELLO = Buffer.concat([Buffer.from([0xfe, 0x0d]), vector(2, Buffer.alloc(64, 9))])

/** Splits a message into TLS records with at most `recordBytes` of content. */
export function toRecords(message: Buffer, recordBytes = message.length): Buffer[] {
  const count = Math.ceil(message.length / recordBytes)
  return Array.from({ length: count }, (_, index) =>
    Buffer.concat([
      Buffer.from([22, 3, 1]),
      vector(2, message.subarray(index * recordBytes, (index + 1) * recordBytes)),
    ]),
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
