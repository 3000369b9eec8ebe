/** Builds Ethernet frames byte by byte, including ones that no regular network stack sends. */
import { addressBytes } from '../cidr.ts'

export const ETHER = { IPV4: 0x0800, ARP: 0x0806, VLAN: 0x8100, IPV6: 0x86dd }
export const PROTOCOL = { ICMP: 1, TCP: 6, UDP: 17, SCTP: 132 }

export type Packet = {
  from: string
  to: string
  protocol: number
  body: Buffer
  id?: number
  /** Offset of a fragment in bytes; a multiple of eight. */
  offset?: number
  moreFragments?: boolean
  ttl?: number
  dscp?: number
}

export function ipv4(packet: Packet): Buffer {
  const header = Buffer.alloc(20)
  header.writeUInt8(0x45, 0)
  header.writeUInt8((packet.dscp ?? 0) << 2, 1)
  header.writeUInt16BE(20 + packet.body.length, 2)
  header.writeUInt16BE(packet.id ?? 0, 4)
  header.writeUInt16BE((packet.moreFragments ? 0x2000 : 0) | ((packet.offset ?? 0) / 8), 6)
  header.writeUInt8(packet.ttl ?? 64, 8)
  header.writeUInt8(packet.protocol, 9)
  addressBytes(packet.from).copy(header, 12)
  addressBytes(packet.to).copy(header, 16)
  header.writeUInt16BE(checksum(header), 10)
  return Buffer.concat([header, packet.body])
}

/** Without a checksum, which is optional in IPv4. */
export function udp(fromPort: number, toPort: number, text: string | Buffer): Buffer {
  const header = Buffer.alloc(8)
  header.writeUInt16BE(fromPort, 0)
  header.writeUInt16BE(toPort, 2)
  header.writeUInt16BE(8 + text.length, 4)
  return Buffer.concat([header, Buffer.from(text)])
}

/** From port 5000 to port 9000, without a checksum. */
export const tcpData = (bytes: number): Buffer =>
  Buffer.concat([Buffer.from('1388232800000001000000015010200000000000', 'hex'), Buffer.alloc(bytes)])

/** Adds a virtio header: TCP over IPv4 with checksums to complete, to be split into segments with `dataBytes` each. */
export function withSegmentSize(frame: string, dataBytes: number): string {
  const header = Buffer.alloc(10)
  header.set([1, 1])
  for (const [index, value] of [54, dataBytes, 34, 16].entries()) header.writeUInt16LE(value, 2 + 2 * index)
  return header.toString('hex') + frame
}

/** A DNS query for the IPv4 address of a name. */
export function renderQuery(name: string, id: number): Buffer {
  const header = Buffer.from([id >> 8, id & 255, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0])
  const labels = name.split('.').map((label) => Buffer.concat([Buffer.from([label.length]), Buffer.from(label)]))
  return Buffer.concat([header, ...labels, Buffer.from([0, 0, 1, 0, 1])])
}

/** `number` is the sequence number of the echo request. */
export function ping(number: number): Buffer {
  const message = Buffer.from([8, 0, 0, 0, 0x77, 0x77, 0, 0, 1, 2, 3, 4])
  message.writeUInt16BE(number, 6)
  message.writeUInt16BE(checksum(message), 2)
  return message
}

export function ether(frame: { to: string; from: string; type?: number; body: Buffer }): string {
  const type = (frame.type ?? ETHER.IPV4).toString(16).padStart(4, '0')
  return `${mac(frame.to)}${mac(frame.from)}${type}${frame.body.toString('hex')}`
}

/** An unsolicited ARP reply that claims `address` for the MAC address `at`. */
export function arpReply(address: string, at: string): Buffer {
  const hardware = Buffer.from(mac(at), 'hex')
  const protocol = addressBytes(address)
  return Buffer.concat([Buffer.from('0001080006040002', 'hex'), hardware, protocol, hardware, protocol])
}

/** Asks who has `target`, in the name of `sender`. */
export function arpRequest(sender: string, at: string, target: string): Buffer {
  const fields = [Buffer.from(mac(at), 'hex'), addressBytes(sender), Buffer.alloc(6), addressBytes(target)]
  return Buffer.concat([Buffer.from('0001080006040001', 'hex'), ...fields])
}

/** The echo replies in received frames: their sender and sequence number. */
export function parseEchoReplies(frames: readonly string[]): { from: string; number: number }[] {
  return frames
    .map((frame) => Buffer.from(frame, 'hex'))
    .filter((frame) => frame.readUInt16BE(12) === ETHER.IPV4 && frame[23] === PROTOCOL.ICMP && frame[34] === 0)
    .map((frame) => ({ from: frame.subarray(26, 30).join('.'), number: frame.readUInt16BE(40) }))
}

const mac = (text: string): string => text.replaceAll(':', '')

function checksum(bytes: Buffer): number {
  let sum = 0
  for (let at = 0; at < bytes.length; at += 2) sum += (bytes[at]! << 8) | (bytes[at + 1] ?? 0)
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16)
  return ~sum & 0xffff
}
