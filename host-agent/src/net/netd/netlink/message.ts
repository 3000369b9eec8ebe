/** Netlink messages: a header, a body of fixed size and attributes, aligned to 4 bytes, in little-endian order. */

export const NLM_F = { REQUEST: 0x1, ACK: 0x4, DUMP: 0x300, REPLACE: 0x100, EXCL: 0x200, CREATE: 0x400 } as const
/** A flag of responses: the list has changed since the kernel returned the first part of it. */
export const NLM_F_DUMP_INTR = 0x10
export const NLMSG_ERROR = 2
export const NLMSG_DONE = 3
const HEADER_BYTES = 16
const NESTED = 0x8000
/** The two highest bits of an attribute's type are flags. */
const TYPE_MASK = 0x3fff

/** A request without its sequence number. */
export type Request = { type: number; flags: number; body: Buffer }
export type Response = { type: number; flags: number; sequence: number; body: Buffer }

export function renderMessage(request: Request, sequence: number): Buffer {
  const header = Buffer.alloc(HEADER_BYTES)
  header.writeUInt32LE(HEADER_BYTES + request.body.length, 0)
  header.writeUInt16LE(request.type, 4)
  header.writeUInt16LE(request.flags | NLM_F.REQUEST, 6)
  header.writeUInt32LE(sequence, 8)
  return pad(Buffer.concat([header, request.body]))
}

export function parseMessages(bytes: Buffer): Response[] {
  const responses: Response[] = []
  for (let at = 0; at + HEADER_BYTES <= bytes.length; ) {
    const length = bytes.readUInt32LE(at)
    if (length < HEADER_BYTES || at + length > bytes.length) throw new Error('netlink returned a truncated message')
    responses.push({
      type: bytes.readUInt16LE(at + 4),
      flags: bytes.readUInt16LE(at + 6),
      sequence: bytes.readUInt32LE(at + 8),
      body: bytes.subarray(at + HEADER_BYTES, at + length),
    })
    at += aligned(length)
  }
  return responses
}

export function attribute(type: number, value: Buffer): Buffer {
  const header = Buffer.alloc(4)
  header.writeUInt16LE(4 + value.length, 0)
  header.writeUInt16LE(type, 2)
  return pad(Buffer.concat([header, value]))
}

export const nested = (type: number, ...parts: Buffer[]): Buffer => attribute(type | NESTED, Buffer.concat(parts))
export const textAttribute = (type: number, text: string): Buffer => attribute(type, Buffer.from(`${text}\0`))

export function numberAttribute(type: number, value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32LE(value)
  return attribute(type, bytes)
}

export function parseAttributes(bytes: Buffer): Map<number, Buffer> {
  const attributes = new Map<number, Buffer>()
  for (let at = 0; at + 4 <= bytes.length; ) {
    const length = bytes.readUInt16LE(at)
    if (length < 4 || at + length > bytes.length) throw new Error('netlink returned a truncated attribute')
    attributes.set(bytes.readUInt16LE(at + 2) & TYPE_MASK, bytes.subarray(at + 4, at + length))
    at += aligned(length)
  }
  return attributes
}

export const readText = (value: Buffer | undefined): string => value?.toString().replace(/\0.*$/s, '') ?? ''

const aligned = (length: number): number => (length + 3) & ~3

function pad(bytes: Buffer): Buffer {
  const missing = aligned(bytes.length) - bytes.length
  return missing === 0 ? bytes : Buffer.concat([bytes, Buffer.alloc(missing)])
}
