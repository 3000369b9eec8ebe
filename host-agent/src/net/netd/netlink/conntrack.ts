/**
 * Lists and deletes the flows (connection tracking entries) of a sandbox on the host. None may remain when an address is
 * released: packets of established flows are accepted, so the next sandbox with the address would receive replies meant for
 * the previous one.
 */

import { hasCode } from '../../../ffi/system-call.ts'
import { addressBytes } from '../../cidr.ts'
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
  /** Undefined for protocols other than TCP and UDP. */
  port: number | undefined
  /** Differs from the destination when the host redirected the flow. */
  repliedFrom: string
  /** As received from the kernel. */
  tuple: Buffer
}

/** Returns the number of deleted flows. */
export function deleteFlowsFrom(ip: string, matches: (flow: Flow) => boolean = () => true): number {
  using socket = openConntrack()
  const flows = findFlowsFrom(socket, ip).filter(matches)
  for (const { tuple } of flows) {
    try {
      socket.change(`delete a flow of ${ip}`, deleteFlow(tuple))
    } catch (error) {
      // The flow ended in the meantime.
      if (!hasCode(error, 'ENOENT')) throw error
    }
  }
  return flows.length
}

/** Checks every entry, because kernels before 5.8 ignore the filter and list all flows. */
export function findFlowsFrom(socket: NetlinkSocket, ip: string): Flow[] {
  return socket.dump(`list the flows of ${ip}`, listFlowsFrom(ip)).flatMap(({ body }) => {
    const attributes = parseAttributes(body.subarray(HEADER.length))
    const tuple = attributes.get(CTA.TUPLE_ORIG)
    if (tuple === undefined || findAddress(tuple, IP_SOURCE) !== ip) return []
    const reply = attributes.get(CTA.TUPLE_REPLY)
    return [
      {
        destination: findAddress(tuple, IP_DESTINATION) ?? '',
        port: findPort(tuple),
        repliedFrom: (reply && findAddress(reply, IP_SOURCE)) ?? '',
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

function findAddress(tuple: Buffer, which: number): string | undefined {
  const addresses = parseAttributes(tuple).get(TUPLE_IP)
  return addresses && parseAttributes(addresses).get(which)?.join('.')
}

function findPort(tuple: Buffer): number | undefined {
  const protocol = parseAttributes(tuple).get(TUPLE_PROTO)
  return protocol && parseAttributes(protocol).get(PROTO_DESTINATION_PORT)?.readUInt16BE(0)
}
