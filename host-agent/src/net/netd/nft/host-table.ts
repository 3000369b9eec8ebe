/**
 * The nftables table of one Warren on the host: how packets of sandboxes leave the machine and what they reach of the host.
 *
 * The table in the slot (slot-table.ts) decides what a sandbox may send. Packets that arrive here have passed it, and carry
 * a DSCP mark where the host must act: redirect to the proxy, or forward unchanged. The closed ranges are checked here
 * again. Traffic between two sandboxes has passed the tables of both.
 *
 * The table affects only packets of our own interfaces (`policy accept`, then drops that name them), because other programs
 * forward on this machine too. Established traffic is accepted only towards a sandbox, so that a flow which its slot no
 * longer allows stops immediately. The rules are replaced in one transaction.
 *
 * Connections of each sandbox are counted and their rate is limited before anything else is done with a packet, because the
 * kernel's table of connections is shared. A dropped packet leaves no entry. The sets with the counts are kept when the rules
 * are replaced.
 *
 * While nothing listens at the port of the S3 proxy, because it or the host agent is being replaced, the kernel would refuse
 * connections to it, and programs of guests that use a disk would get an error. Its refusals, which have the sequence number 0, are
 * dropped: the guest's kernel tries again until the next proxy listens.
 *
 * HOST_ADDRESS is for this machine and its sandboxes only. The kernel accepts packets to it on every interface, so the
 * table drops those from elsewhere: all of them from uplinks, and those to our ports from any other interface. (Not all
 * of them there: the guests of another Warren on this machine use the same address.)
 */
import { CLOSED_RANGES } from '@warren/protocol'
import type { EgressProxyPorts } from '../../egress-proxy-protocol.ts'
import { HOST_ADDRESS, hostTable, outerVethPrefix } from '../../names.ts'
import type { ApiListener, SandboxLimits } from '../../netd-protocol.ts'
import { MARK } from './slot-table.ts'

export type HostTable = {
  instance: string
  cidr: string
  uplinks: readonly string[]
  /** The networks of this machine outside CLOSED_RANGES. */
  subnets: readonly string[]
  egressProxy: EgressProxyPorts
  /** Of the S3 proxy; 0 if there is none. */
  s3Port: number
  api: ApiListener
  limits: Pick<SandboxLimits, 'flows' | 'newFlowsPerSecond'>
  /** Forwarding was off before Warren was started; see FORWARDING_WAS_OFF. */
  forwardingWasOff: boolean
}

/**
 * An empty chain whose existence records, for the life of the table and across restarts, that forwarding was off before
 * Warren was started. (The JSON output of older nft versions lacks the comment of a table.)
 */
export const FORWARDING_WAS_OFF = 'forwarding_was_off'

/** For programs that open many connections at once, such as a package manager. */
const BURST_SECONDS = 5
/** More than the addresses of a block. */
const SOURCES_MAX = 131_072
const CHAINS = ['prerouting', 'limits', 'dstnat', 'forward', 'input', 'output', 'srcnat']

export function renderHostTable(table: HostTable): string {
  const name = hostTable(table.instance)
  const { dns, http, tls } = table.egressProxy
  const { flows, newFlowsPerSecond } = table.limits
  const ownPorts = [dns, http, tls, table.s3Port, table.api.port].filter((port) => port !== 0)
  const veths = `"${outerVethPrefix(table.instance)}*"`
  const fresh = CHAINS.flatMap((chain) => [`add chain ip ${name} ${chain}`, `flush chain ip ${name} ${chain}`])
  const gone = CHAINS.map((chain) => `delete chain ip ${name} ${chain}`)
  return `
add table ip ${name}
${fresh.join('\n')}
${gone.join('\n')}
table ip ${name} {
${table.forwardingWasOff ? `  chain ${FORWARDING_WAS_OFF} { }\n` : ''}\
  set new_flows { type ipv4_addr; size ${SOURCES_MAX}; flags dynamic,timeout; timeout 1m; }
  set flows { type ipv4_addr; size ${SOURCES_MAX}; flags dynamic; }
  chain prerouting {
    type filter hook prerouting priority raw; policy accept;
    iifname ${veths} ip saddr != ${table.cidr} drop
  }
  chain limits {
    type filter hook prerouting priority mangle; policy accept;
    iifname ${veths} ct state new update @new_flows { ip saddr limit rate over ${newFlowsPerSecond}/second burst ${BURST_SECONDS * newFlowsPerSecond} packets } drop
    iifname ${veths} ct state new add @flows { ip saddr ct count over ${flows} } drop
  }
  chain dstnat {
    type nat hook prerouting priority dstnat; policy accept;
    iifname ${veths} ip dscp ${MARK.GRANTED} return
    iifname ${veths} ip daddr ${table.cidr} return
    iifname ${veths} udp dport 53 dnat to ${HOST_ADDRESS}:${dns}
    iifname ${veths} tcp dport 53 dnat to ${HOST_ADDRESS}:${dns}
    iifname ${veths} ip dscp ${MARK.PROXIED} tcp dport 80 dnat to ${HOST_ADDRESS}:${http}
    iifname ${veths} ip dscp ${MARK.PROXIED} tcp dport 443 dnat to ${HOST_ADDRESS}:${tls}
  }
  chain forward {
    type filter hook forward priority filter; policy accept;
    iifname ${veths} tcp flags syn / syn,rst tcp option maxseg size set rt mtu
    oifname ${veths} tcp flags syn / syn,rst tcp option maxseg size set rt mtu
    iifname ${veths} oifname ${veths} accept
${renderUplinkRules(table, veths)}
    iifname ${veths} drop
    oifname ${veths} drop
  }
  chain input {
    type filter hook input priority filter; policy accept;
    iifname ${veths} ct state established,related accept
    iifname ${veths} ip daddr ${HOST_ADDRESS} udp dport ${dns} accept
    iifname ${veths} ip daddr ${HOST_ADDRESS} tcp dport { ${dns}, ${http}, ${tls} } accept
${table.s3Port === 0 ? '' : `    iifname ${veths} ip daddr ${HOST_ADDRESS} tcp dport ${table.s3Port} accept\n`}\
    iifname ${veths} ip dscp ${MARK.LIMITED} drop
${renderApiRule(table, veths)}\
    iifname ${veths} drop
    iifname != "lo" ip daddr ${HOST_ADDRESS} meta l4proto { tcp, udp } th dport { ${ownPorts.join(', ')} } drop
${table.uplinks.length === 0 ? '' : `    iifname ${names(table.uplinks)} ip daddr ${HOST_ADDRESS} drop\n`}\
  }
  chain output {
    type filter hook output priority filter; policy accept;
${table.s3Port === 0 ? '' : `    ip saddr ${HOST_ADDRESS} ip daddr ${table.cidr} tcp sport ${table.s3Port} tcp flags & (rst | ack) == (rst | ack) tcp sequence 0 drop\n`}\
  }
  chain srcnat {
    type nat hook postrouting priority srcnat; policy accept;
${table.uplinks.length === 0 ? '' : `    oifname ${names(table.uplinks)} ip saddr ${table.cidr} masquerade\n`}\
  }
}
`
}

/**
 * Without the address in the rule, sandboxes would also reach a program of another user that listens at the same port on
 * an address where the API does not.
 */
function renderApiRule({ api }: HostTable, veths: string): string {
  if (api.port === 0) return ''
  return `    iifname ${veths} ${api.beyondLoopback ? '' : `ip daddr ${HOST_ADDRESS} `}tcp dport ${api.port} accept\n`
}

/** No rules without an uplink: nothing leaves the machine. */
function renderUplinkRules({ uplinks, subnets }: HostTable, veths: string): string {
  if (uplinks.length === 0) return ''
  const out = `    iifname ${veths} oifname ${names(uplinks)}`
  return [
    `${out} ip dscp ${MARK.GRANTED} ip dscp set 0 accept`,
    // A flow from before its sandbox got rules for the proxy. New flows are redirected to the proxy and end on this host.
    `${out} ip dscp ${MARK.PROXIED} drop`,
    `${out} ip daddr { ${[...CLOSED_RANGES, ...subnets].join(', ')} } drop`,
    `${out} accept`,
    `    iifname ${names(uplinks)} oifname ${veths} ct state established,related accept`,
  ].join('\n')
}

const names = (interfaces: readonly string[]): string => `{ ${interfaces.map(quoted).join(', ')} }`

/** The kernel allows nearly every character in a name, even quotes. Names with unusual characters are not supported. */
function quoted(name: string): string {
  if (!/^[\w.@-]{1,15}$/.test(name))
    throw new Error(`the interface name ${JSON.stringify(name)} has characters that are not supported for an uplink`)
  return `"${name}"`
}

export const renderDeleteHostTable = (instance: string): string =>
  `add table ip ${hostTable(instance)}\ndelete table ip ${hostTable(instance)}`
