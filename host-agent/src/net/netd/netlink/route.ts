/** Renders requests about links, addresses and routes, and parses dumps of them. Has no side effects. */
import { addressBytes } from '../../cidr.ts'
import {
  attribute,
  NLM_F,
  nested,
  numberAttribute,
  parseAttributes,
  type Request,
  type Response,
  readText,
  textAttribute,
} from './message.ts'

const RTM = {
  NEWLINK: 16,
  DELLINK: 17,
  GETLINK: 18,
  NEWADDR: 20,
  DELADDR: 21,
  NEWROUTE: 24,
  DELROUTE: 25,
  GETROUTE: 26,
  NEWNEIGH: 28,
}
const IFLA = { ADDRESS: 1, IFNAME: 3, MTU: 4, LINKINFO: 18, STATS64: 23, NET_NS_FD: 28 }
const LINKINFO = { KIND: 1, DATA: 2 }
const VETH_PEER = 1
const IFA = { ADDRESS: 1, LOCAL: 2 }
const NDA = { DST: 1, LLADDR: 2 }
const NUD_PERMANENT = 0x80
const RTA = { DST: 1, OIF: 4, GATEWAY: 5, PRIORITY: 6, MULTIPATH: 9, TABLE: 15 }
const AF_INET = 2
const IFF_UP = 1
const TABLE_MAIN = 254
const SCOPE_LINK = 253
const SCOPE_UNIVERSE = 0
const TYPE_UNICAST = 1
const TYPE_BLACKHOLE = 6
/** The protocol number of all our routes (an unassigned one, see `man ip-route`), to distinguish them from others. */
export const ROUTE_PROTOCOL = 87

export type Link = { index: number; name: string; mtu: number }
export type Route = {
  address: string
  prefix: number
  type: 'unicast' | 'blackhole' | 'other'
  protocol: number
  scopeLink: boolean
  metric: number
  interfaceIndexes: number[]
}

export type Veth = {
  name: string
  mac?: string
  peerName: string
  /** The namespace of the peer. By default both ends are in the current namespace. */
  peerNetnsFd?: number
  peerMac?: string
  mtu: number
}

export const createVeth = (link: Veth): Request => ({
  type: RTM.NEWLINK,
  flags: NLM_F.CREATE | NLM_F.EXCL,
  body: Buffer.concat([
    linkBody(0, true),
    textAttribute(IFLA.IFNAME, link.name),
    numberAttribute(IFLA.MTU, link.mtu),
    ...(link.mac === undefined ? [] : [attribute(IFLA.ADDRESS, macBytes(link.mac))]),
    nested(
      IFLA.LINKINFO,
      textAttribute(LINKINFO.KIND, 'veth'),
      nested(
        LINKINFO.DATA,
        nested(
          VETH_PEER,
          linkBody(0, false),
          textAttribute(IFLA.IFNAME, link.peerName),
          numberAttribute(IFLA.MTU, link.mtu),
          ...(link.peerMac === undefined ? [] : [attribute(IFLA.ADDRESS, macBytes(link.peerMac))]),
          ...(link.peerNetnsFd === undefined ? [] : [numberAttribute(IFLA.NET_NS_FD, link.peerNetnsFd)]),
        ),
      ),
    ),
  ]),
})

const macBytes = (mac: string): Buffer => Buffer.from(mac.replaceAll(':', ''), 'hex')

export const setLinkUp = (index: number, mtu?: number): Request => ({
  type: RTM.NEWLINK,
  flags: 0,
  body: Buffer.concat([linkBody(index, true), ...(mtu === undefined ? [] : [numberAttribute(IFLA.MTU, mtu)])]),
})

export const deleteLink = (index: number): Request => ({ type: RTM.DELLINK, flags: 0, body: linkBody(index, false) })
export const getLink = (index: number): Request => ({ type: RTM.GETLINK, flags: 0, body: linkBody(index, false) })
export const listLinks = (): Request => ({ type: RTM.GETLINK, flags: 0, body: linkBody(0, false) })

export const addAddress = (index: number, address: string, prefix: number): Request => ({
  type: RTM.NEWADDR,
  flags: NLM_F.CREATE | NLM_F.REPLACE,
  body: addressBody(index, address, prefix),
})

export const deleteAddress = (index: number, address: string, prefix: number): Request => ({
  type: RTM.DELADDR,
  flags: 0,
  body: addressBody(index, address, prefix),
})

/** The MAC address behind an IPv4 address, for the life of the link. */
export const addNeighbour = (index: number, address: string, mac: string): Request => ({
  type: RTM.NEWNEIGH,
  flags: NLM_F.CREATE | NLM_F.REPLACE,
  body: neighbourBody(index, address, mac),
})

/** A route to an address at the other end of a link. Fails with EEXIST while another link has the address. */
export const addLinkRoute = (index: number, address: string): Request => ({
  type: RTM.NEWROUTE,
  flags: NLM_F.CREATE | NLM_F.EXCL,
  body: routeBody({ address, prefix: 32, scope: SCOPE_LINK, type: TYPE_UNICAST, index }),
})

export const deleteLinkRoute = (index: number, address: string): Request => ({
  type: RTM.DELROUTE,
  flags: 0,
  body: routeBody({ address, prefix: 32, scope: SCOPE_LINK, type: TYPE_UNICAST, index }),
})

export const addDefaultRoute = (index: number, gateway: string): Request => ({
  type: RTM.NEWROUTE,
  flags: NLM_F.CREATE | NLM_F.EXCL,
  body: routeBody({ prefix: 0, scope: SCOPE_UNIVERSE, type: TYPE_UNICAST, index, gateway }),
})

/** Keeps packets to unused addresses of the block on this machine. The metric identifies the instance. */
export const addBlackhole = (address: string, prefix: number, metric: number): Request => ({
  type: RTM.NEWROUTE,
  flags: NLM_F.CREATE | NLM_F.REPLACE,
  body: routeBody({ address, prefix, scope: SCOPE_UNIVERSE, type: TYPE_BLACKHOLE, metric }),
})

export const deleteBlackhole = (address: string, prefix: number, metric: number): Request => ({
  type: RTM.DELROUTE,
  flags: 0,
  body: routeBody({ address, prefix, scope: SCOPE_UNIVERSE, type: TYPE_BLACKHOLE, metric }),
})

export const listRoutes = (): Request => ({
  type: RTM.GETROUTE,
  flags: 0,
  body: Buffer.from([AF_INET, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
})

export function parseLink(response: Response): Link {
  const attributes = parseAttributes(response.body.subarray(16))
  const mtu = attributes.get(IFLA.MTU)?.readUInt32LE(0) ?? 0
  return { index: response.body.readInt32LE(4), name: readText(attributes.get(IFLA.IFNAME)), mtu }
}

/** How many packets the link has received. Undefined if the kernel does not tell. */
export function parseReceivedPackets(response: Response): bigint | undefined {
  // The first number of struct rtnl_link_stats64.
  return parseAttributes(response.body.subarray(16)).get(IFLA.STATS64)?.readBigUInt64LE(0)
}

/** Undefined for routes outside the main table: the local table and those of the operator do not concern us. */
export function parseRoute({ body }: Response): Route | undefined {
  const attributes = parseAttributes(body.subarray(12))
  const table = attributes.get(RTA.TABLE)?.readUInt32LE(0) ?? body.readUInt8(4)
  if (table !== TABLE_MAIN) return undefined
  const type = body.readUInt8(7)
  return {
    address: (attributes.get(RTA.DST) ?? Buffer.alloc(4)).join('.'),
    prefix: body.readUInt8(1),
    type: type === TYPE_UNICAST ? 'unicast' : type === TYPE_BLACKHOLE ? 'blackhole' : 'other',
    protocol: body.readUInt8(5),
    scopeLink: body.readUInt8(6) === SCOPE_LINK,
    metric: attributes.get(RTA.PRIORITY)?.readUInt32LE(0) ?? 0,
    interfaceIndexes: interfaceIndexes(attributes),
  }
}

/** A route has one interface, or several in a list of struct rtnexthop (length, flags, hops, index, attributes). */
function interfaceIndexes(attributes: Map<number, Buffer>): number[] {
  const only = attributes.get(RTA.OIF)
  if (only !== undefined) return [only.readUInt32LE(0)]
  const hops = attributes.get(RTA.MULTIPATH) ?? Buffer.alloc(0)
  const indexes: number[] = []
  for (let at = 0; at + 8 <= hops.length; at += Math.max((hops.readUInt16LE(at) + 3) & ~3, 8)) {
    indexes.push(hops.readInt32LE(at + 4))
  }
  return indexes
}

/** struct ifinfomsg: family, type, index, flags, which flags to change. */
function linkBody(index: number, up: boolean): Buffer {
  const body = Buffer.alloc(16)
  body.writeInt32LE(index, 4)
  body.writeUInt32LE(up ? IFF_UP : 0, 8)
  body.writeUInt32LE(up ? IFF_UP : 0, 12)
  return body
}

/**
 * struct ifaddrmsg: family, prefix length, flags, scope, index. The link scope prevents that the host uses a link-local
 * address as the source of its packets to the internet.
 */
function addressBody(index: number, address: string, prefix: number): Buffer {
  const scope = address.startsWith('169.254.') ? SCOPE_LINK : SCOPE_UNIVERSE
  const body = Buffer.from([AF_INET, prefix, 0, scope, 0, 0, 0, 0])
  body.writeUInt32LE(index, 4)
  const bytes = addressBytes(address)
  return Buffer.concat([body, attribute(IFA.LOCAL, bytes), attribute(IFA.ADDRESS, bytes)])
}

/** struct ndmsg: family, padding, index, state, flags, type. */
function neighbourBody(index: number, address: string, mac: string): Buffer {
  const body = Buffer.alloc(12)
  body.writeUInt8(AF_INET, 0)
  body.writeInt32LE(index, 4)
  body.writeUInt16LE(NUD_PERMANENT, 8)
  return Buffer.concat([body, attribute(NDA.DST, addressBytes(address)), attribute(NDA.LLADDR, macBytes(mac))])
}

/** struct rtmsg: family, lengths of target and source, tos, table, protocol, scope, type, flags. */
function routeBody(route: {
  address?: string
  prefix: number
  scope: number
  type: number
  index?: number
  gateway?: string
  metric?: number
}): Buffer {
  const { prefix, scope, type } = route
  return Buffer.concat([
    Buffer.from([AF_INET, prefix, 0, 0, TABLE_MAIN, ROUTE_PROTOCOL, scope, type, 0, 0, 0, 0]),
    ...(route.address === undefined ? [] : [attribute(RTA.DST, addressBytes(route.address))]),
    ...(route.index === undefined ? [] : [numberAttribute(RTA.OIF, route.index)]),
    ...(route.gateway === undefined ? [] : [attribute(RTA.GATEWAY, addressBytes(route.gateway))]),
    ...(route.metric === undefined ? [] : [numberAttribute(RTA.PRIORITY, route.metric)]),
  ])
}
