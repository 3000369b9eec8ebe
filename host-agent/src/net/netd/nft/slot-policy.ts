/**
 * Renders what one sandbox may send and receive as rules for the chains of its slot's table. The first match decides:
 *
 *   egress    allows peers, DNS, the S3 proxy and the API on the host, and granted private addresses; then refuses closed addresses, except
 *             that DNS queries go to our server whichever server they were sent to; then allows what rules allow, or
 *             everything when the policy is open; last, sends ports with rules by name to the proxy. Everything else is
 *             refused.
 *   ingress   drops packets of sandboxes that are not peers, so that a sandbox leaves a network as soon as one side changes.
 *   dns       queries to our server: above the rate of UDP they are dropped, which a resolver repeats. (Over TCP the server
 *             answers more slowly instead, egress-proxy/dns/server.ts.)
 *   passed    everything but traffic of disks (docs/disks.md): the budget, then the counter: refused packets cost nothing, and `out` counts exactly what left.
 *
 * Ports of the host are closed here and not only in the host's table: another program on the machine can flush that one, and
 * until it is restored this table is all there is (guard-host.ts).
 *
 * A packet without a port (a later fragment) matches no rule with a port: it passes only if the whole address is allowed.
 */
import { BANDWIDTH_UNMETERED } from '@warren/protocol'
import { renderCidr } from '../../cidr.ts'
import { HOST_ADDRESS, SLOT_TABLE } from '../../names.ts'
import { allowsHostPort, apiAddresses, type Blocks, type Policy } from '../../policy.ts'
import { MARK } from './slot-table.ts'

export type Budget = { limitBytes: number; usedBytes: number }
/** For programs that resolve many names at once, such as a package manager. */
const DNS_BURST_SECONDS = 5
const TCP_OR_UDP = 'meta l4proto { tcp, udp }'

/**
 * `budget` replaces the current one; undefined keeps the kernel's count of it. `hasQuota`: the table has a budget now.
 * `counts`: new values of the counters, for a claim; undefined leaves the counters unchanged.
 */
export function renderSlotPolicy(
  policy: Policy,
  budget: Budget | undefined,
  hasQuota: boolean,
  counts?: { usedBytes: number; ingressBytes: number },
): string {
  const metered = policy.quotaBytes !== BANDWIDTH_UNMETERED
  const replaces = budget !== undefined || !metered
  // The kernel rejects a budget whose use exceeds its limit.
  const used = Math.min(budget?.usedBytes ?? 0, budget?.limitBytes ?? 0)
  return [
    // Tables that an earlier version made lack it.
    `add chain ip ${SLOT_TABLE} dns`,
    ...['egress', 'ingress', 'dns', 'passed'].map((chain) => `flush chain ip ${SLOT_TABLE} ${chain}`),
    ...(hasQuota && replaces ? [`delete quota ip ${SLOT_TABLE} budget`] : []),
    ...(counts === undefined ? [] : renderCounters(counts)),
    ...(metered && budget !== undefined
      ? [`add quota ip ${SLOT_TABLE} budget { over ${budget.limitBytes} bytes used ${used} bytes }`]
      : []),
    ...inChain('egress', egressRules(policy)),
    ...inChain('ingress', ingressRules(policy)),
    ...inChain('dns', dnsRules(policy)),
    ...inChain('passed', [...(metered ? ['quota name "budget" drop'] : []), 'counter name "out" accept']),
  ].join('\n')
}

/** Valid after the chains are flushed: a counter that a rule refers to cannot be deleted. */
const renderCounters = ({ usedBytes, ingressBytes }: { usedBytes: number; ingressBytes: number }): string[] =>
  [
    ['out', usedBytes],
    ['in', ingressBytes],
  ].flatMap(([name, bytes]) => [
    `delete counter ip ${SLOT_TABLE} ${name}`,
    `add counter ip ${SLOT_TABLE} ${name} { packets 0 bytes ${bytes} }`,
  ])

function egressRules(policy: Policy): string[] {
  const proxiedPorts = [...new Set(policy.hosts.flatMap(({ ports }) => ports))]
  return [
    'ip dscp != 0 ip dscp set 0',
    ...(policy.peers.length === 0 ? [] : [`ip daddr ${braces(policy.peers)} goto direct`]),
    `ip daddr ${policy.cidr} return`,
    ...hostRules(policy),
    ...blockRules(policy.granted, `ip dscp set ${MARK.GRANTED} goto direct`),
    `${TCP_OR_UDP} th dport 53 ip daddr @closed goto dns`,
    'ip daddr @closed return',
    ...subnetRules(policy),
    ...(policy.open ? [] : blockRules(policy.rules, 'goto ruled')),
    `${TCP_OR_UDP} th dport 53 goto dns`,
    ...(policy.open ? ['goto direct'] : []),
    ...(policy.open || proxiedPorts.length === 0
      ? []
      : [`tcp dport ${braces(proxiedPorts)} ip dscp set ${MARK.PROXIED} goto passed`]),
  ]
}

/**
 * Of the host a sandbox reaches DNS, the S3 proxy (which answers those with a disk) and the API; it also sends replies to connections of the host. What is marked the host
 * drops, except replies. DNS queries get the port of our server here, and its responses the port 53 (`ingressRules`), so that
 * without the host's table they reach no other server on the machine.
 */
function hostRules(policy: Policy): string[] {
  const { machine } = policy
  const { port } = machine.api
  const toHost = `ip daddr ${HOST_ADDRESS}`
  const apiAt = [...(allowsHostPort(policy, port) ? [HOST_ADDRESS] : []), ...apiAddresses(policy)]
  return [
    // The kernel would turn the checksum of a datagram without one into a wrong one.
    `${toHost} udp dport 53 udp checksum 0 udp dport set ${machine.dnsPort} udp checksum set 0 goto dns`,
    ...['udp', 'tcp'].map(
      (protocol) => `${toHost} ${protocol} dport 53 ${protocol} dport set ${machine.dnsPort} goto dns`,
    ),
    ...(machine.s3Port === 0 ? [] : [`${toHost} tcp dport ${machine.s3Port} accept`]),
    ...(port === 0 || apiAt.length === 0 ? [] : [`ip daddr ${braces(apiAt)} tcp dport ${port} goto passed`]),
    `${toHost} tcp flags & (syn | ack) != syn ip dscp set ${MARK.LIMITED} goto passed`,
    `${toHost} meta l4proto icmp ip dscp set ${MARK.LIMITED} goto passed`,
    `ip daddr ${braces([HOST_ADDRESS, ...machine.addresses])} return`,
  ]
}

const dnsRules = ({ machine: { dnsPerSecond } }: Policy): string[] => [
  `meta l4proto udp limit rate over ${dnsPerSecond}/second burst ${DNS_BURST_SECONDS * dnsPerSecond} packets drop`,
  'goto passed',
]

const subnetRules = ({ machine: { subnets } }: Policy): string[] =>
  subnets.length === 0
    ? []
    : [`${TCP_OR_UDP} th dport 53 ip daddr ${braces(subnets)} goto dns`, `ip daddr ${braces(subnets)} return`]

const ingressRules = ({ cidr, peers, machine: { dnsPort, s3Port } }: Policy): string[] => [
  `ip saddr ${cidr} ${peers.length === 0 ? '' : `ip saddr != ${braces(peers)} `}drop`,
  ...['udp', 'tcp'].map((protocol) => `ip saddr ${HOST_ADDRESS} ${protocol} sport ${dnsPort} ${protocol} sport set 53`),
  ...(s3Port === 0 ? [] : [`ip saddr ${HOST_ADDRESS} tcp sport ${s3Port} accept`]),
  'counter name "in" accept',
]

function blockRules({ anyPort, onePort }: Blocks, verdict: string): string[] {
  const withPorts = onePort.map((block) => `${renderCidr(block)} . ${block.port}`)
  return [
    ...(anyPort.length === 0 ? [] : [`ip daddr ${braces(anyPort.map(renderCidr))} ${verdict}`]),
    ...(withPorts.length === 0 ? [] : [`${TCP_OR_UDP} ip daddr . th dport ${braces(withPorts)} ${verdict}`]),
  ]
}

const inChain = (chain: string, rules: readonly string[]): string[] =>
  rules.map((rule) => `add rule ip ${SLOT_TABLE} ${chain} ${rule}`)

const braces = (elements: readonly (string | number)[]): string => `{ ${elements.join(', ')} }`
