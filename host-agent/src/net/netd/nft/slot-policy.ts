/**
 * What one sandbox may send and receive, as the chains of its slot's table. Their order decides:
 *
 *   egress    peers, the host, private addresses that were granted; then no closed address (except that a question for
 *             a name goes to our resolver, whichever server it was meant for); then the rules, or everything when open;
 *             last, what the proxy judges by name. What is left is refused.
 *   ingress   sandboxes that are no peers are kept out here as well, so leaving a network needs one side only.
 *   passed    the budget, then the count: what was refused costs nothing, and `out` is exactly what left.
 *
 * A packet without a port (a later fragment) matches no rule with one: it passes only where the whole address is open.
 */
import { BANDWIDTH_UNMETERED } from '@warren/protocol'
import { renderCidr } from '../../cidr.ts'
import { HOST_ADDRESS, SLOT_TABLE } from '../../names.ts'
import type { Blocks, Policy } from '../../policy.ts'
import { STAMP } from './slot-table.ts'

export type Budget = { limitBytes: number; usedBytes: number }
const NAMED_PORTS = 'meta l4proto { tcp, udp }'

/**
 * `budget`: a new one to replace what is there; undefined keeps the kernel's own count of it. `counts`: what the counters
 * go on from, of a sandbox that gets its slot; undefined lets them run.
 */
export function renderSlotPolicy(
  policy: Policy,
  budget: Budget | undefined,
  hasQuota: boolean,
  counts?: { usedBytes: number; ingressBytes: number },
): string {
  const metered = policy.quotaBytes !== BANDWIDTH_UNMETERED
  const replaces = budget !== undefined || !metered
  // The kernel takes no budget that is more than used up.
  const used = Math.min(budget?.usedBytes ?? 0, budget?.limitBytes ?? 0)
  return [
    ...['egress', 'ingress', 'passed'].map((chain) => `flush chain ip ${SLOT_TABLE} ${chain}`),
    ...(hasQuota && replaces ? [`delete quota ip ${SLOT_TABLE} budget`] : []),
    ...(counts === undefined ? [] : renderCounters(counts)),
    ...(metered && budget !== undefined
      ? [`add quota ip ${SLOT_TABLE} budget { over ${budget.limitBytes} bytes used ${used} bytes }`]
      : []),
    ...inChain('egress', egressRules(policy)),
    ...inChain('ingress', ingressRules(policy)),
    ...inChain('passed', [...(metered ? ['quota name "budget" drop'] : []), 'counter name "out" accept']),
  ].join('\n')
}

/** When no rule names them: they are replaced. */
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
    `ip daddr ${HOST_ADDRESS} ${policy.reachesHost ? '' : `ip dscp set ${STAMP.LIMITED} `}goto passed`,
    ...toBlocks(policy.granted, `ip dscp set ${STAMP.GRANTED} goto direct`),
    `${NAMED_PORTS} th dport 53 ip daddr @closed goto passed`,
    'ip daddr @closed return',
    ...(policy.open ? [] : toBlocks(policy.rules, 'goto ruled')),
    `${NAMED_PORTS} th dport 53 goto passed`,
    ...(policy.open ? ['goto direct'] : []),
    ...(policy.open || proxiedPorts.length === 0
      ? []
      : [`tcp dport ${braces(proxiedPorts)} ip dscp set ${STAMP.PROXIED} goto passed`]),
  ]
}

const ingressRules = ({ cidr, peers }: Policy): string[] => [
  `ip saddr ${cidr} ${peers.length === 0 ? '' : `ip saddr != ${braces(peers)} `}drop`,
  'counter name "in" accept',
]

function toBlocks({ anyPort, onePort }: Blocks, verdict: string): string[] {
  const withPorts = onePort.map((block) => `${renderCidr(block)} . ${block.port}`)
  return [
    ...(anyPort.length === 0 ? [] : [`ip daddr ${braces(anyPort.map(renderCidr))} ${verdict}`]),
    ...(withPorts.length === 0 ? [] : [`${NAMED_PORTS} ip daddr . th dport ${braces(withPorts)} ${verdict}`]),
  ]
}

const inChain = (chain: string, rules: readonly string[]): string[] =>
  rules.map((rule) => `add rule ip ${SLOT_TABLE} ${chain} ${rule}`)

const braces = (elements: readonly (string | number)[]): string => `{ ${elements.join(', ')} }`
