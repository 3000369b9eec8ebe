/** Combines what the kernel and the egress proxy recorded about a sandbox into the report for the control plane. */
import type { EgressDecision, EgressRefusal, HostBandwidth, HostVmNetworkReport } from '@warren/protocol'
import { contains, parseCidr } from './cidr.ts'
import { isClosedAddress } from './closed-ranges.ts'
import type { EgressProxyReport } from './egress-proxy-protocol.ts'
import { isOfMachine } from './machine.ts'
import { HOST_ADDRESS } from './names.ts'
import type { RefusedDestination, SlotReport, Usage } from './netd-protocol.ts'
import type { PolicySettings } from './policy.ts'

const DECISIONS_MAX = 200
const FLOWS_MAX = 1_000

export function renderReport(
  revision: number,
  settings: PolicySettings,
  slotReport: SlotReport,
  proxyReport: EgressProxyReport,
  now = Date.now(),
): HostVmNetworkReport {
  const refused = slotReport.refused.map((one) => renderDecision(one, settings, now))
  const flows = slotReport.flows.map(({ address, protocol, port = 0, packets }) => ({
    destination: address,
    protocol,
    port,
    count: packets,
  }))
  return {
    revision,
    bandwidth: renderBandwidth(slotReport.usage),
    decisions: [...refused, ...proxyReport.decisions]
      .sort((one, other) => Date.parse(other.at) - Date.parse(one.at))
      .slice(0, DECISIONS_MAX),
    flows: [...flows, ...proxyReport.flows].sort((one, other) => other.count - one.count).slice(0, FLOWS_MAX),
  }
}

export const renderBandwidth = (usage: Usage): HostBandwidth => ({
  quota_bytes: usage.quotaBytes,
  used_bytes: usage.usedBytes,
  ingress_bytes: usage.ingressBytes,
  capped: usage.capped,
})

function renderDecision(
  { address, protocol, port, packets, agoSeconds }: RefusedDestination,
  settings: PolicySettings,
  now: number,
): EgressDecision {
  return {
    at: new Date(now - agoSeconds * 1_000).toISOString(),
    via: 'packet',
    destination: address,
    protocol,
    ...(port === undefined ? {} : { port }),
    reason: findReason(address, settings),
    count: packets,
  }
}

/** The kernel records only the destination. The reason follows from it: the slot's table checks in this order. */
function findReason(address: string, { cidr, machine }: PolicySettings): EgressRefusal {
  if (contains(parseCidr(cidr), { address, prefix: 32 })) return 'not_a_peer'
  // Link-local, but open to a rule that names it.
  if (address === HOST_ADDRESS) return 'not_allowed'
  return isClosedAddress(address) || isOfMachine(machine, address) ? 'private_address' : 'not_allowed'
}
