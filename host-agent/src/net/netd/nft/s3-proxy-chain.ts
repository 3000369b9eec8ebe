/**
 * The rules that limit what the S3 proxy sends, found by its user, as part of the table of the egress proxy (proxy-table.ts). It parses what
 * guests send and has credentials; if it was taken over, these rules keep it from the services of this machine and of the networks
 * around it. They accept, in this order: replies to sandboxes, queries to the name servers of the machine, ports of loopback at which
 * a mounted store is, blocks that the operator has opened (WARREN_DISK_PRIVATE_CIDRS), and TCP to public addresses.
 */
import { isIPv6 } from 'node:net'
import { CLOSED_RANGES } from '@warren/protocol'
import type { Upstream } from '../../egress-proxy-protocol.ts'
import type { MachineNetwork } from '../../machine.ts'
import type { S3ProxyAccess } from '../../netd-protocol.ts'

export type S3ProxyChain = S3ProxyAccess & {
  /** The block of the sandboxes. */
  cidr: string
  upstreams: readonly Upstream[]
  machine: MachineNetwork
  /** The networks of IPv6 that this machine is connected to, with its own addresses. */
  subnetsV6: readonly string[]
}

/** As the proxy decides itself (kit/src/outbound/addresses.ts). */
const CLOSED_V6 = ['2001::/23', '2001:db8::/32', '2002::/16', '3fff::/20']

export function renderS3ProxyChain({
  cidr,
  upstreams,
  privateCidrs,
  loopbackPorts,
  machine,
  subnetsV6,
}: S3ProxyChain): string {
  const closed = [...CLOSED_RANGES, ...machine.subnets, ...machine.addresses]
  const own = ['127.0.0.0/8', ...machine.addresses]
  const ports = `tcp dport { ${loopbackPorts.join(', ')} }`
  return `
  set s3_closed { type ipv4_addr; flags interval; auto-merge; elements = { ${closed.join(', ')} }; }
  set s3_closed6 { type ipv6_addr; flags interval; auto-merge; elements = { ${[...CLOSED_V6, ...subnetsV6].join(', ')} }; }
  chain s3_proxy {
    ct direction reply ip daddr ${cidr} accept
${upstreams.map(renderUpstream).join('')}\
${loopbackPorts.length === 0 ? '' : `    ip daddr { ${own.join(', ')} } ${ports} accept\n    ip6 daddr ::1 ${ports} accept\n`}\
${privateCidrs.map((block) => `    ${family(block)} daddr ${block} meta l4proto tcp accept\n`).join('')}\
    ip daddr @s3_closed drop
    ip6 daddr @s3_closed6 drop
    meta nfproto ipv4 meta l4proto tcp accept
    ip6 daddr 2000::/3 meta l4proto tcp accept
    drop
  }
`
}

/** The zone of a link-local address is not part of the packet. */
export function renderUpstream({ address, port }: Upstream): string {
  const [bare] = address.split('%') as [string]
  return `    ${family(bare)} daddr ${bare} meta l4proto { tcp, udp } th dport ${port} accept\n`
}

const family = (block: string): string => (isIPv6(block.split('/')[0]!) ? 'ip6' : 'ip')
