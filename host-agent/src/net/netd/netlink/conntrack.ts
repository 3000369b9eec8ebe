/**
 * The flows the host remembers. A released address must not leave any: the next sandbox that gets it would receive the
 * answers to the last one's questions, because what comes back in for a known flow is let through.
 */
import { addressBytes } from '../../cidr.ts'
import { hasCode } from '../libc.ts'
import { attribute, nested, numberAttribute, parseAttributes, type Request } from './message.ts'
import { NetlinkSocket } from './socket.ts'

const NETLINK_NETFILTER = 12
const SUBSYSTEM = 1 << 8
const CT = { GET: SUBSYSTEM | 1, DELETE: SUBSYSTEM | 2 }
const CTA = { TUPLE_ORIG: 1, TUPLE_REPLY: 2, FILTER: 25 }
const TUPLE_IP = 1
const TUPLE_PROTO = 2
const IP_SOURCE = 1
const IP_DESTINATION = 2
const PROTO_DESTINATION_PORT = 3
const FILTER_ORIG_FLAGS = 1
const FILTER_BY_IP_SOURCE = 1
/** struct nfgenmsg: family (IPv4), version, resource. */
const HEADER = Buffer.from([2, 0, 0, 0])

export type Flow = {
  destination: string
  /** Of TCP and UDP. */
  port: number | undefined
  /** Other than the destination when the host turned the flow elsewhere. */
  repliedFrom: string
  /** As the kernel gave it. */
  tuple: Buffer
}

/** How many there were. */
export function deleteFlowsFrom(ip: string, chosen: (flow: Flow) => boolean = () => true): number {
  using socket = openConntrack()
  const flows = findFlowsFrom(socket, ip).filter(chosen)
  for (const { tuple } of flows) {
    try {
      socket.change(`forget a flow of ${ip}`, deleteFlow(tuple))
    } catch (error) {
      // It ended by itself a moment ago.
      if (!hasCode(error, 'ENOENT')) throw error
    }
  }
  return flows.length
}

/** A kernel before 5.8 knows no filter and lists all: so each is looked at. */
export function findFlowsFrom(socket: NetlinkSocket, ip: string): Flow[] {
  return socket.dump(`list the flows of ${ip}`, listFlowsFrom(ip)).flatMap(({ body }) => {
    const attributes = parseAttributes(body.subarray(HEADER.length))
    const tuple = attributes.get(CTA.TUPLE_ORIG)
    if (tuple === undefined || addressOf(tuple, IP_SOURCE) !== ip) return []
    const reply = attributes.get(CTA.TUPLE_REPLY)
    return [
      {
        destination: addressOf(tuple, IP_DESTINATION) ?? '',
        port: portOf(tuple),
        repliedFrom: (reply && addressOf(reply, IP_SOURCE)) ?? '',
        tuple,
      },
    ]
  })
}

export const listFlowsFrom = (ip: string): Request => ({
  type: CT.GET,
  flags: 0,
  body: Buffer.concat([
    HEADER,
    nested(CTA.TUPLE_ORIG, nested(TUPLE_IP, attribute(IP_SOURCE, addressBytes(ip)))),
    nested(CTA.FILTER, numberAttribute(FILTER_ORIG_FLAGS, FILTER_BY_IP_SOURCE)),
  ]),
})

export const openConntrack = (): NetlinkSocket => new NetlinkSocket(NETLINK_NETFILTER)

const deleteFlow = (tuple: Buffer): Request => ({
  type: CT.DELETE,
  flags: 0,
  body: Buffer.concat([HEADER, nested(CTA.TUPLE_ORIG, tuple)]),
})

function addressOf(tuple: Buffer, which: number): string | undefined {
  const addresses = parseAttributes(tuple).get(TUPLE_IP)
  return addresses && parseAttributes(addresses).get(which)?.join('.')
}

function portOf(tuple: Buffer): number | undefined {
  const protocol = parseAttributes(tuple).get(TUPLE_PROTO)
  return protocol && parseAttributes(protocol).get(PROTO_DESTINATION_PORT)?.readUInt16BE(0)
}
