/**
 * The nftables table that limits what the egress proxy sends, found by its user. The proxy decides by name what a sandbox reaches, and
 * parses what guests send to do so. If it was taken over, this table is what keeps it from the services of this machine and of
 * the networks around it. It accepts, in this order: replies to sandboxes, queries to the name servers of the machine, blocks that the
 * operator has opened (WARREN_EGRESS_PRIVATE_CIDRS), and TCP to public addresses. Everything else is dropped.
 *
 * Which block is open to which sandbox is known to the proxy alone.
 *
 * The table also has the rules of the S3 proxy, if there is one (s3-proxy-chain.ts).
 */
import { CLOSED_RANGES } from '@warren/protocol'
import type { Upstream } from '../../egress-proxy-protocol.ts'
import type { MachineNetwork } from '../../machine.ts'
import { proxyTable } from '../../names.ts'
import { renderS3ProxyChain, renderUpstream, type S3ProxyChain } from './s3-proxy-chain.ts'

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
  s3Proxy?: S3ProxyChain
}

export function renderProxyTable(table: ProxyTable): string {
  const { instance, cidr, uid, upstreams, privateCidrs, machine, s3Proxy } = table
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
${s3Proxy ? `    meta skuid ${s3Proxy.uid} goto s3_proxy\n` : ''}\
  }
  chain proxy {
    ct direction reply ip daddr ${cidr} accept
${upstreams.map(renderUpstream).join('')}\
${privateCidrs.map((block) => `    ip daddr ${block} meta l4proto tcp accept\n`).join('')}\
    ip daddr @closed drop
    meta nfproto ipv4 meta l4proto tcp accept
    drop
  }
${s3Proxy ? renderS3ProxyChain(s3Proxy) : ''}\
}
`
}

export const renderDeleteProxyTable = (instance: string): string =>
  `add table inet ${proxyTable(instance)}\ndelete table inet ${proxyTable(instance)}`
