/** As much of DNS (RFC 1035) as a proxy needs: who asks what. Queries come from guests: anything may be in them. */
import { addressBytes } from '../../cidr.ts'

export type Query = {
  id: number
  /** In lower case, without the last dot; `.` is the root. */
  name: string
  type: number
  class: number
  /** Header and question, which is what an answer of ours repeats. */
  head: Buffer
}

const HEADER_BYTES = 12
const NAME_MAX_BYTES = 255
const LABEL_MAX_BYTES = 63
export const RCODE = { NOERROR: 0, FORMERR: 1, SERVFAIL: 2, NXDOMAIN: 3, REFUSED: 5 } as const
export const TYPE = { A: 1, AAAA: 28, SVCB: 64, HTTPS: 65 } as const
export const CLASS_IN = 1

/** undefined: not a single ordinary question, and not worth an answer. */
export function parseQuery(packet: Buffer): Query | undefined {
  if (packet.length < HEADER_BYTES) return undefined
  const isResponse = (packet.readUInt8(2) & 0x80) !== 0
  const opcode = (packet.readUInt8(2) >> 3) & 0xf
  if (isResponse || opcode !== 0 || packet.readUInt16BE(4) !== 1) return undefined

  const labels: string[] = []
  let at = HEADER_BYTES
  for (;;) {
    const length = packet[at]
    // Longer than a label is a compression pointer, which a first name has nothing to point at.
    if (length === undefined || length > LABEL_MAX_BYTES) return undefined
    at += 1 + length
    if (length === 0) break
    if (at > packet.length || at - HEADER_BYTES > NAME_MAX_BYTES) return undefined
    // A dot inside a label is not one between labels: rules must not take it for one.
    labels.push(packet.toString('latin1', at - length, at).replaceAll('.', '\\.'))
  }
  if (at + 4 > packet.length) return undefined
  return {
    id: packet.readUInt16BE(0),
    name: labels.join('.').toLowerCase() || '.',
    type: packet.readUInt16BE(at),
    class: packet.readUInt16BE(at + 2),
    head: packet.subarray(0, at + 4),
  }
}

/** The same question under another number. */
export function withId(packet: Buffer, id: number): Buffer {
  const copy = Buffer.from(packet)
  copy.writeUInt16BE(id, 0)
  return copy
}

/** Only an answer to what was asked counts: anybody could send a packet to the port we asked from. */
export function isAnswerTo(answer: Buffer, question: Buffer, { head }: Query): boolean {
  if (answer.length < head.length || (answer.readUInt8(2) & 0x80) === 0) return false
  if (answer.readUInt16BE(0) !== question.readUInt16BE(0)) return false
  return answer.subarray(HEADER_BYTES, head.length).equals(head.subarray(HEADER_BYTES))
}

/** The question and nothing that came with it. */
export function withoutExtras({ head }: Query): Buffer {
  const question = Buffer.from(head)
  // Of the flags, only whether recursion is wanted.
  question.writeUInt16BE((question.readUInt8(2) & 0x01) << 8, 2)
  question.fill(0, 6, HEADER_BYTES)
  return question
}

/** One A record for each address; each points back to the question's name. */
export function renderAddresses(query: Query, addresses: readonly string[], ttlSeconds: number): Buffer {
  const head = renderFailure(query, RCODE.NOERROR)
  head.writeUInt16BE(addresses.length, 6)
  const records = addresses.map((address) => {
    const record = Buffer.from([0xc0, HEADER_BYTES, 0, TYPE.A, 0, CLASS_IN, 0, 0, 0, 0, 0, 4, ...addressBytes(address)])
    record.writeUInt32BE(ttlSeconds, 6)
    return record
  })
  return Buffer.concat([head, ...records])
}

/** An answer without records: a failure, or with NOERROR that the name has none of this type. */
export function renderFailure({ head }: Query, rcode: (typeof RCODE)[keyof typeof RCODE]): Buffer {
  const answer = Buffer.from(head)
  // A response, with the recursion bit as asked; recursion is available; one question, nothing else.
  answer.writeUInt8(0x80 | (answer.readUInt8(2) & 0x01), 2)
  answer.writeUInt8(0x80 | rcode, 3)
  answer.fill(0, 6, HEADER_BYTES)
  return answer
}
