/** The generation of the nftables rules in the namespace of this thread: the kernel raises it with every transaction. */
import { parseAttributes, type Request } from './message.ts'
import { NetlinkSocket } from './socket.ts'

const NETLINK_NETFILTER = 12
const GET_GENERATION = (10 << 8) | 16
const GENERATION_ID = 1
/** struct nfgenmsg: family (any), version, resource. */
const HEADER = Buffer.from([0, 0, 0, 0])
const REQUEST: Request = { type: GET_GENERATION, flags: 0, body: HEADER }

export function readGeneration(): number {
  using socket = new NetlinkSocket(NETLINK_NETFILTER)
  const { body } = socket.get('read the generation of the nftables rules', REQUEST)
  const id = parseAttributes(body.subarray(HEADER.length)).get(GENERATION_ID)
  if (id === undefined) throw new Error('the kernel reports no generation of the nftables rules')
  return id.readUInt32BE(0)
}
