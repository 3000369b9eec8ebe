/**
 * The host's table of one Warren: how sandboxes get out, to whom, and what of the host they reach.
 *
 * What a sandbox may send is judged in its slot (slot-table.ts); what arrives here has been let out there, and carries a
 * stamp where the host must act on it: to the proxy, or as it is. The private ranges are closed here a second time.
 * Between two sandboxes both slots have agreed.
 *
 * It judges packets of our own interfaces only (`policy accept`, then drops that name them), because other programs
 * forward on this machine too. Established traffic is accepted only on its way back in, so that what a slot no longer
 * lets out stops at once. Replacing the rules is one transaction.
 */
import { CLOSED_RANGES } from '../../closed-ranges.ts'
import type { GatePorts } from '../../egress-proxy-protocol.ts'
import { HOST_ADDRESS, hostTable, outerVethPrefix } from '../../names.ts'
import { STAMP } from './slot-table.ts'

export type HostTable = {
  instance: string
  cidr: string
  uplinks: readonly string[]
  gate: GatePorts
  /** TCP ports of the host that sandboxes may reach: the API's, when it listens beyond loopback. */
  apiPorts: readonly number[]
  /** Before Warren came: see FORWARDING_WAS_OFF. */
  forwardingWasOff: boolean
}

/**
 * An empty chain that remembers for as long as the table lives, over any number of restarts, that forwarding was off
 * before us. (The JSON of older nft does not show a table's comment.)
 */
export const FORWARDING_WAS_OFF = 'forwarding_was_off'

const CHAINS = ['prerouting', 'dstnat', 'forward', 'input', 'srcnat']

export function renderHostTable(table: HostTable): string {
  const name = hostTable(table.instance)
  const { dns, http, tls } = table.gate
  const ours = `"${outerVethPrefix(table.instance)}*"`
  const fresh = CHAINS.flatMap((chain) => [`add chain ip ${name} ${chain}`, `flush chain ip ${name} ${chain}`])
  const gone = CHAINS.map((chain) => `delete chain ip ${name} ${chain}`)
  return `
add table ip ${name}
${fresh.join('\n')}
${gone.join('\n')}
table ip ${name} {
${table.forwardingWasOff ? `  chain ${FORWARDING_WAS_OFF} { }\n` : ''}\
  chain prerouting {
    type filter hook prerouting priority raw; policy accept;
    iifname ${ours} ip saddr != ${table.cidr} drop
  }
  chain dstnat {
    type nat hook prerouting priority dstnat; policy accept;
    iifname ${ours} ip dscp ${STAMP.GRANTED} return
    iifname ${ours} ip daddr ${table.cidr} return
    iifname ${ours} udp dport 53 dnat to ${HOST_ADDRESS}:${dns}
    iifname ${ours} tcp dport 53 dnat to ${HOST_ADDRESS}:${dns}
    iifname ${ours} ip dscp ${STAMP.PROXIED} tcp dport 80 dnat to ${HOST_ADDRESS}:${http}
    iifname ${ours} ip dscp ${STAMP.PROXIED} tcp dport 443 dnat to ${HOST_ADDRESS}:${tls}
  }
  chain forward {
    type filter hook forward priority filter; policy accept;
    iifname ${ours} tcp flags syn / syn,rst tcp option maxseg size set rt mtu
    oifname ${ours} tcp flags syn / syn,rst tcp option maxseg size set rt mtu
    iifname ${ours} oifname ${ours} accept
${renderUplinkRules(table, ours)}
    iifname ${ours} drop
    oifname ${ours} drop
  }
  chain input {
    type filter hook input priority filter; policy accept;
    iifname ${ours} ct state established,related accept
    iifname ${ours} ip daddr ${HOST_ADDRESS} udp dport ${dns} accept
    iifname ${ours} ip daddr ${HOST_ADDRESS} tcp dport { ${dns}, ${http}, ${tls} } accept
    iifname ${ours} ip dscp ${STAMP.LIMITED} drop
${table.apiPorts.length === 0 ? '' : `    iifname ${ours} tcp dport { ${table.apiPorts.join(', ')} } accept\n`}\
    iifname ${ours} drop
    iifname != "lo" ip daddr ${HOST_ADDRESS} meta l4proto { tcp, udp } th dport { ${dns}, ${http}, ${tls} } drop
  }
  chain srcnat {
    type nat hook postrouting priority srcnat; policy accept;
${table.uplinks.length === 0 ? '' : `    oifname ${names(table.uplinks)} ip saddr ${table.cidr} masquerade\n`}\
  }
}
`
}

/** Without an uplink nothing leaves the machine. */
function renderUplinkRules({ uplinks }: HostTable, ours: string): string {
  if (uplinks.length === 0) return ''
  const out = `    iifname ${ours} oifname ${names(uplinks)}`
  return [
    `${out} ip dscp ${STAMP.GRANTED} ip dscp set 0 accept`,
    // A flow from before its sandbox was given to the proxy; the proxy's own ends on this host.
    `${out} ip dscp ${STAMP.PROXIED} drop`,
    `${out} ip daddr { ${CLOSED_RANGES.join(', ')} } drop`,
    `${out} accept`,
    `    iifname ${names(uplinks)} oifname ${ours} ct state established,related accept`,
  ].join('\n')
}

const names = (interfaces: readonly string[]): string => `{ ${interfaces.map(quoted).join(', ')} }`

/** The kernel allows nearly every character in a name; what would end the quotes is not worth supporting. */
function quoted(name: string): string {
  if (!/^[\w.@-]{1,15}$/.test(name)) throw new Error(`cannot use ${JSON.stringify(name)} as an uplink: odd characters`)
  return `"${name}"`
}

export const renderDeleteHostTable = (instance: string): string =>
  `add table ip ${hostTable(instance)}\ndelete table ip ${hostTable(instance)}`
