/**
 * The nftables table that limits what the egress proxy sends, found by its user. The proxy decides by name what a sandbox reaches, and
 * parses what guests send to do so. If it was taken over, this table is what keeps it from the services of this machine and of
 * the networks around it. It accepts, in this order: replies to sandboxes, queries to the name servers of the machine, blocks that the
 * operator has opened (WARREN_EGRESS_PRIVATE_CIDRS), and TCP to public addresses. Everything else is dropped.
 *
 * Which block is open to which sandbox is known to the proxy alone.
 */
import { isIPv6 } from 'node:net'
import { CLOSED_RANGES } from '@warren/protocol'
import type { Upstream } from '../../egress-proxy-protocol.ts'
import type { MachineNetwork } from '../../machine.ts'
import { proxyTable } from '../../names.ts'

export type ProxyTable = {
  instance: string
  /** The block of the sandboxes. */
  cidr: string
  /** The user of the egress proxy. */
  uid: number
  upstreams: readonly Upstream[]
  /** Blocks that the operator has opened. */
  privateCidrs: readonly string[]
  machine: MachineNetwork
}

export function renderProxyTable({ instance, cidr, uid, upstreams, privateCidrs, machine }: ProxyTable): string {
  const name = proxyTable(instance)
  const closed = [...CLOSED_RANGES, ...machine.subnets, ...machine.addresses]
  return `
add table inet ${name}
delete table inet ${name}
table inet ${name} {
  set closed { type ipv4_addr; flags interval; auto-merge; elements = { ${closed.join(', ')} }; }
  chain output {
    type filter hook output priority filter; policy accept;
    meta skuid ${uid} goto proxy
  }
  chain proxy {
    ct direction reply ip daddr ${cidr} accept
${upstreams.map(renderUpstream).join('')}\
${privateCidrs.map((block) => `    ip daddr ${block} meta l4proto tcp accept\n`).join('')}\
    ip daddr @closed drop
    meta nfproto ipv4 meta l4proto tcp accept
    drop
  }
}
`
}

/** The zone of a link-local address is not part of the packet. */
function renderUpstream({ address, port }: Upstream): string {
  const [bare] = address.split('%') as [string]
  return `    ${isIPv6(bare) ? 'ip6' : 'ip'} daddr ${bare} meta l4proto { tcp, udp } th dport ${port} accept\n`
}

export const renderDeleteProxyTable = (instance: string): string =>
  `add table inet ${proxyTable(instance)}\ndelete table inet ${proxyTable(instance)}`
