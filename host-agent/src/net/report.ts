/** What the kernel and the gate have seen of a sandbox, as the control plane reads it. */
import type { EgressDecision, EgressRefusal, HostBandwidth, HostVmNetworkReport } from '@warren/protocol'
import { contains, parseCidr } from './cidr.ts'
import { isClosedAddress } from './closed-ranges.ts'
import type { GateReport } from './egress-proxy-protocol.ts'
import type { Refused, SlotReport, Usage } from './netd-protocol.ts'

const DECISIONS_MAX = 200
const FLOWS_MAX = 1_000

export function renderReport(
  revision: number,
  cidr: string,
  inKernel: SlotReport,
  inGate: GateReport,
  now = Date.now(),
): HostVmNetworkReport {
  const refused = inKernel.refused.map((one) => toDecision(one, cidr, now))
  const flows = inKernel.flows.map(({ address, protocol, port = 0, packets }) => ({
    destination: address,
    protocol,
    port,
    count: packets,
  }))
  return {
    revision,
    bandwidth: renderBandwidth(inKernel.usage),
    decisions: [...refused, ...inGate.decisions]
      .sort((one, other) => Date.parse(other.at) - Date.parse(one.at))
      .slice(0, DECISIONS_MAX),
    flows: [...flows, ...inGate.flows].sort((one, other) => other.count - one.count).slice(0, FLOWS_MAX),
  }
}

export const renderBandwidth = (usage: Usage): HostBandwidth => ({
  quota_bytes: usage.quotaBytes,
  used_bytes: usage.usedBytes,
  ingress_bytes: usage.ingressBytes,
  capped: usage.capped,
})

function toDecision(
  { address, protocol, port, packets, agoSeconds }: Refused,
  cidr: string,
  now: number,
): EgressDecision {
  return {
    at: new Date(now - agoSeconds * 1_000).toISOString(),
    via: 'packet',
    destination: address,
    protocol,
    ...(port === undefined ? {} : { port }),
    reason: reasonOf(address, cidr),
    count: packets,
  }
}

/** The kernel tells only where it was going, and that says why: the chain asks in this order. */
function reasonOf(address: string, cidr: string): EgressRefusal {
  if (contains(parseCidr(cidr), { address, prefix: 32 })) return 'not_a_peer'
  return isClosedAddress(address) ? 'private_address' : 'not_allowed'
}
