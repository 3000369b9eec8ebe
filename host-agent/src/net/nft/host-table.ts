/**
 * The host's table of one Warren: what sandboxes may reach, and how they get out.
 *
 * It judges packets of our own interfaces only (`policy accept`, then drops that name them), because other programs
 * forward on this machine too. Replacing the rules is one transaction that leaves the sets and their elements alone.
 *
 * Sets: a sandbox in `open` reaches every public address. The others wait for allowlists and private networks: a
 * sandbox in `byname` goes through the proxy, `rule_ip` and `rule_ipport` hold its addresses, `pairs` who may talk to
 * whom. Their rules stand here already, because their order among the others is what makes them right: pairs and
 * private ranges come before anything is accepted, and established traffic is accepted only on its way back in, so
 * that taking an element away stops open flows too.
 */
import { HOST_ADDRESS, hostTable, outerVethPrefix } from '../names.ts'

export type HostTable = {
  instance: string
  cidr: string
  uplinks: readonly string[]
  dnsPort: number
  /** TCP ports of the host that sandboxes may reach: the API's, when it listens beyond loopback. */
  apiPorts: readonly number[]
  /** Before Warren came: see FORWARDING_WAS_OFF. */
  forwardingWasOff: boolean
}

/** Closed to sandboxes: private, shared, loopback, link-local (and the clouds' metadata), multicast, reserved. */
export const CLOSED_RANGES = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.168.0.0/16',
  '224.0.0.0/3',
]

/**
 * An empty chain that remembers for as long as the table lives, over any number of restarts, that forwarding was off
 * before us. (The JSON of older nft does not show a table's comment.)
 */
export const FORWARDING_WAS_OFF = 'forwarding_was_off'

const CHAINS = ['prerouting', 'dstnat', 'forward', 'input', 'srcnat']

export function renderHostTable(table: HostTable): string {
  const name = hostTable(table.instance)
  const ours = `"${outerVethPrefix(table.instance)}*"`
  const fresh = CHAINS.flatMap((chain) => [`add chain ip ${name} ${chain}`, `flush chain ip ${name} ${chain}`])
  const gone = CHAINS.map((chain) => `delete chain ip ${name} ${chain}`)
  return `
add table ip ${name}
${fresh.join('\n')}
${gone.join('\n')}
table ip ${name} {
${table.forwardingWasOff ? `  chain ${FORWARDING_WAS_OFF} { }\n` : ''}\
  set open { type ipv4_addr; }
  set byname { type ipv4_addr; }
  set pairs { type ipv4_addr . ipv4_addr; }
  set rule_ip { type ipv4_addr . ipv4_addr; flags interval; }
  set rule_ipport { type ipv4_addr . ipv4_addr . inet_service; flags interval; }
  chain prerouting {
    type filter hook prerouting priority raw; policy accept;
    iifname ${ours} ip saddr != ${table.cidr} drop
  }
  chain dstnat {
    type nat hook prerouting priority dstnat; policy accept;
    iifname ${ours} udp dport 53 dnat to ${HOST_ADDRESS}:${table.dnsPort}
    iifname ${ours} tcp dport 53 dnat to ${HOST_ADDRESS}:${table.dnsPort}
  }
  chain forward {
    type filter hook forward priority filter; policy accept;
    iifname ${ours} tcp flags syn / syn,rst tcp option maxseg size set rt mtu
    oifname ${ours} tcp flags syn / syn,rst tcp option maxseg size set rt mtu
    iifname ${ours} oifname ${ours} ip saddr . ip daddr @pairs accept
    iifname ${ours} oifname ${ours} drop
${renderUplinkRules(table, ours)}
    iifname ${ours} drop
    oifname ${ours} drop
  }
  chain input {
    type filter hook input priority filter; policy accept;
    iifname ${ours} ct state established,related accept
    iifname ${ours} meta l4proto { tcp, udp } th dport ${table.dnsPort} ip daddr ${HOST_ADDRESS} accept
${table.apiPorts.length === 0 ? '' : `    iifname ${ours} tcp dport { ${table.apiPorts.join(', ')} } accept\n`}\
    iifname ${ours} drop
    iifname != "lo" ip daddr ${HOST_ADDRESS} meta l4proto { tcp, udp } th dport ${table.dnsPort} drop
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
    `${out} ip saddr . ip daddr @rule_ip accept`,
    `${out} meta l4proto { tcp, udp } ip saddr . ip daddr . th dport @rule_ipport accept`,
    `${out} ip daddr { ${CLOSED_RANGES.join(', ')} } drop`,
    `${out} ip saddr @open accept`,
    `    iifname ${names(uplinks)} oifname ${ours} ct state established,related accept`,
  ].join('\n')
}

const names = (interfaces: readonly string[]): string => `{ ${interfaces.map(quoted).join(', ')} }`

/** The kernel allows nearly every character in a name; what would end the quotes is not worth supporting. */
function quoted(name: string): string {
  if (!/^[\w.@-]{1,15}$/.test(name)) throw new Error(`cannot use ${JSON.stringify(name)} as an uplink: odd characters`)
  return `"${name}"`
}

export const renderOpenEgress = (instance: string, ip: string): string =>
  `add element ip ${hostTable(instance)} open { ${ip} }`

/** Adding first makes the deletion right whether or not the element was there. */
export const renderCloseEgress = (instance: string, ips: readonly string[]): string =>
  ['open', 'byname']
    .flatMap((set) => ['add', 'delete'].map((verb) => ({ verb, set })))
    .map(({ verb, set }) => `${verb} element ip ${hostTable(instance)} ${set} { ${ips.join(', ')} }`)
    .join('\n')

export const renderDeleteHostTable = (instance: string): string =>
  `add table ip ${hostTable(instance)}\ndelete table ip ${hostTable(instance)}`
