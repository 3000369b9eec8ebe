/** Packets built byte by byte, which the network stack of a guest would not send. */

export const PROTOCOL = { ICMP: 1, UDP: 17, SCTP: 132 }
const ETHER = { IPV4: '0800', ARP: '0806', IPV6: '86dd' }

export type Packet = {
  from: string
  to: string
  protocol?: number
  body: Buffer
  id?: number
  /** Offset of a fragment in bytes, a multiple of eight. */
  offset?: number
  moreFragments?: boolean
  dscp?: number
}

export function ipv4({ from, to, protocol = PROTOCOL.UDP, body, id = 0, ...rest }: Packet): Buffer {
  const header = Buffer.alloc(20)
  header.set([0x45, (rest.dscp ?? 0) << 2])
  header.writeUInt16BE(20 + body.length, 2)
  header.writeUInt16BE(id, 4)
  header.writeUInt16BE((rest.moreFragments ? 0x2000 : 0) + (rest.offset ?? 0) / 8, 6)
  header.set([64, protocol], 8)
  header.set([...bytesOf(from), ...bytesOf(to)], 12)
  header.writeUInt16BE(checksum(header), 10)
  return Buffer.concat([header, body])
}

/** Without a checksum, which IPv4 allows. */
export const udp = (port: number, text: string): Buffer =>
  Buffer.concat([words(5000, port, 8 + text.length, 0), Buffer.from(text)])

/** The response carries the same `number`. */
export function ping(number: number): Buffer {
  const message = words(0x0800, 0, 0x7777, number, 0x0102, 0x0304)
  message.writeUInt16BE(checksum(message), 2)
  return message
}

/** Bytes that identify the response to a ping among frames. */
export const pongBytes = (number: number): Buffer => words(0x7777, number, 0x0102, 0x0304)

/** An IPv6 datagram from a link-local address to a public one. */
export function ipv6(port: number, text: string): Buffer {
  const body = udp(port, text)
  const addresses = 'fe80000000000000505400fffe00000120010db8000000000000000000000001'
  return Buffer.concat([words(0x6000, 0, body.length, 0x1140), Buffer.from(addresses, 'hex'), body])
}

/** The MAC addresses of a guest's link. */
export type Link = { gateway: string; own: string }
export const overIpv4 = ({ gateway, own }: Link, body: Buffer): Buffer => ether(gateway, own, ETHER.IPV4, body)
export const overIpv6 = ({ gateway, own }: Link, body: Buffer): Buffer => ether(gateway, own, ETHER.IPV6, body)

/** An unsolicited ARP reply, broadcast: `address` is at `mac`. */
export function arpAnnouncement(address: string, mac: string): Buffer {
  const sender = Buffer.concat([bytesOfMac(mac), bytesOf(address)])
  return ether(
    'ff:ff:ff:ff:ff:ff',
    mac,
    ETHER.ARP,
    Buffer.concat([Buffer.from('0001080006040002', 'hex'), sender, sender]),
  )
}

/** The source address and number of each ping response among frames in hex. */
export const pongsIn = (framesInHex: string): string[] =>
  framesInHex
    .split(',')
    .map((frame) => Buffer.from(frame, 'hex'))
    .filter((frame) => frame.toString('hex', 12, 14) === ETHER.IPV4 && frame[23] === PROTOCOL.ICMP && frame[34] === 0)
    .map((frame) => `${frame.subarray(26, 30).join('.')} ${frame.readUInt16BE(40)}`)

const ether = (to: string, from: string, type: string, body: Buffer): Buffer =>
  Buffer.concat([bytesOfMac(to), bytesOfMac(from), Buffer.from(type, 'hex'), body])

const bytesOf = (address: string): Buffer => Buffer.from(address.split('.').map(Number))
const bytesOfMac = (mac: string): Buffer => Buffer.from(mac.replaceAll(':', ''), 'hex')

function words(...values: number[]): Buffer {
  const bytes = Buffer.alloc(2 * values.length)
  for (const [index, value] of values.entries()) bytes.writeUInt16BE(value, 2 * index)
  return bytes
}

function checksum(bytes: Buffer): number {
  let sum = 0
  for (let at = 0; at < bytes.length; at += 2) sum += bytes.readUInt16BE(at)
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16)
  return ~sum & 0xffff
}
