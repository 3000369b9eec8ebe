/** The part of DNS (RFC 1035) that a forwarder needs. Queries come from guests and may contain anything. */
import { addressBytes } from '../../cidr.ts'

export type Query = {
  id: number
  /** In lower case and without the last dot; `.` is the root. */
  name: string
  type: number
  class: number
  /** Header and question section, which every response repeats. */
  head: Buffer
}

const HEADER_BYTES = 12
const NAME_MAX_BYTES = 255
const LABEL_MAX_BYTES = 63
export const RCODE = { NOERROR: 0, FORMERR: 1, SERVFAIL: 2, NXDOMAIN: 3, REFUSED: 5 } as const
export const TYPE = { A: 1, AAAA: 28, SVCB: 64, HTTPS: 65 } as const
export const CLASS_IN = 1

/** Undefined for anything but an ordinary query with one question; such packets get no response. */
export function parseQuery(packet: Buffer): Query | undefined {
  if (packet.length < HEADER_BYTES) return undefined
  const isResponse = (packet.readUInt8(2) & 0x80) !== 0
  const opcode = (packet.readUInt8(2) >> 3) & 0xf
  if (isResponse || opcode !== 0 || packet.readUInt16BE(4) !== 1) return undefined

  const labels: string[] = []
  let at = HEADER_BYTES
  for (;;) {
    const length = packet[at]
    // A greater value is a compression pointer, and the first name of a message has nothing to point at.
    if (length === undefined || length > LABEL_MAX_BYTES) return undefined
    at += 1 + length
    if (length === 0) break
    if (at > packet.length || at - HEADER_BYTES > NAME_MAX_BYTES) return undefined
    // A dot inside a label is escaped, so that rules do not take it for a separator.
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

/** The same message with another id. */
export function withId(packet: Buffer, id: number): Buffer {
  const copy = Buffer.from(packet)
  copy.writeUInt16BE(id, 0)
  return copy
}

/** Checks that a packet answers `query` as it was sent in `forwarded`: any host can send packets to our port. */
export function isResponseTo(response: Buffer, forwarded: Buffer, { head }: Query): boolean {
  if (response.length < head.length || (response.readUInt8(2) & 0x80) === 0) return false
  if (response.readUInt16BE(0) !== forwarded.readUInt16BE(0)) return false
  return response.subarray(HEADER_BYTES, head.length).equals(head.subarray(HEADER_BYTES))
}

/** The query without additional records, such as EDNS options, in which a guest could send data out. */
export function withoutAdditionalRecords({ head }: Query): Buffer {
  const query = Buffer.from(head)
  // Of the flags only "recursion desired" is kept.
  query.writeUInt16BE((query.readUInt8(2) & 0x01) << 8, 2)
  query.fill(0, 6, HEADER_BYTES)
  return query
}

/** A response with one A record per address; each refers to the name in the question section. */
export function renderAddresses(query: Query, addresses: readonly string[], ttlSeconds: number): Buffer {
  const head = renderEmptyResponse(query, RCODE.NOERROR)
  head.writeUInt16BE(addresses.length, 6)
  const records = addresses.map((address) => {
    const record = Buffer.from([0xc0, HEADER_BYTES, 0, TYPE.A, 0, CLASS_IN, 0, 0, 0, 0, 0, 4, ...addressBytes(address)])
    record.writeUInt32BE(ttlSeconds, 6)
    return record
  })
  return Buffer.concat([head, ...records])
}

/** A response without records: a failure, or with NOERROR a name that has no records of this type. */
export function renderEmptyResponse({ head }: Query, rcode: (typeof RCODE)[keyof typeof RCODE]): Buffer {
  const response = Buffer.from(head)
  // Response bit, "recursion desired" as in the query, "recursion available"; one question and no records.
  response.writeUInt8(0x80 | (response.readUInt8(2) & 0x01), 2)
  response.writeUInt8(0x80 | rcode, 3)
  response.fill(0, 6, HEADER_BYTES)
  return response
}
