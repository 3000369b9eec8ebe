/**
 * Renders what one sandbox may send and receive as rules for the chains of its slot's table. The first match decides:
 *
 *   egress    allows peers, the host and granted private addresses; then refuses closed addresses, except that DNS queries
 *             go to our server whichever server they were sent to; then allows what rules allow, or everything when the
 *             policy is open; last, sends ports with rules by name to the proxy. Everything else is refused.
 *   ingress   drops packets of sandboxes that are not peers, so that a sandbox leaves a network as soon as one side changes.
 *   passed    the budget, then the counter: refused packets cost nothing, and `out` counts exactly what left.
 *
 * A packet without a port (a later fragment) matches no rule with a port: it passes only if the whole address is allowed.
 */
import { BANDWIDTH_UNMETERED } from '@warren/protocol'
import { renderCidr } from '../../cidr.ts'
import { HOST_ADDRESS, SLOT_TABLE } from '../../names.ts'
import type { Blocks, Policy } from '../../policy.ts'
import { MARK } from './slot-table.ts'

export type Budget = { limitBytes: number; usedBytes: number }
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
    `${TCP_OR_UDP} th dport 53 ip daddr @closed goto passed`,
    'ip daddr @closed return',
    ...(policy.open ? [] : blockRules(policy.rules, 'goto ruled')),
    `${TCP_OR_UDP} th dport 53 goto passed`,
    ...(policy.open ? ['goto direct'] : []),
    ...(policy.open || proxiedPorts.length === 0
      ? []
      : [`tcp dport ${braces(proxiedPorts)} ip dscp set ${MARK.PROXIED} goto passed`]),
  ]
}

/**
 * The host also receives replies, so with rules everything to it passes except new connections, which are refused here and
 * thereby recorded. What is marked the host drops, except DNS and replies.
 */
function hostRules({ hostPorts }: Policy): string[] {
  const toHost = `ip daddr ${HOST_ADDRESS}`
  if (hostPorts === 'all') return [`${toHost} goto passed`]
  return [
    ...(hostPorts.length === 0 ? [] : [`${toHost} tcp dport ${braces(hostPorts)} goto passed`]),
    `${toHost} tcp flags & (syn | ack) == syn tcp dport != 53 return`,
    `${toHost} ip dscp set ${MARK.LIMITED} goto passed`,
  ]
}

const ingressRules = ({ cidr, peers }: Policy): string[] => [
  `ip saddr ${cidr} ${peers.length === 0 ? '' : `ip saddr != ${braces(peers)} `}drop`,
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
