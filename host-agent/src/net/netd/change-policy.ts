/** Changes the policy of a slot in use: replaces its rules in one transaction, then ends flows that are no longer allowed. */
import { BANDWIDTH_UNMETERED } from '@warren/protocol'
import { HOST_ADDRESS, netnsPath } from '../names.ts'
import type { PolicyChange } from '../netd-protocol.ts'
import { allowsAddress, allowsHostPort, type Policy } from '../policy.ts'
import type { Kernel } from './kernel.ts'
import { deleteFlowsFrom, type Flow } from './netlink/conntrack.ts'
import { type Budget, renderSlotPolicy } from './nft/slot-policy.ts'
import { openContext } from './nft-contexts.ts'
import { type Counts, readCounts } from './slot-report.ts'

const DNS_PORT = 53

export function changePolicy(kernel: Kernel, { slot, ip, policy, dropFlows }: PolicyChange): void {
  kernel.host.enter(netnsPath(kernel.instance, slot), () => {
    const nft = openContext(slot)
    const counts = readCounts()
    nft.run(renderSlotPolicy(policy, newBudget(policy, counts), counts.quota !== undefined))
  })
  // The rules stop what the sandbox sends. Replies to an existing flow would still come in until the flow is deleted.
  if (dropFlows) deleteFlowsFrom(ip, (flow) => !allowsFlow(policy, flow))
}

/**
 * Undefined keeps the kernel's count of the budget. A new budget is needed when the limit changes, and when the old one is
 * used up: its count then includes dropped packets, and restarts from what really left.
 */
function newBudget({ quotaBytes }: Policy, { quota, usedBytes }: Counts): Budget | undefined {
  if (quotaBytes === BANDWIDTH_UNMETERED) return undefined
  if (quota !== undefined && quota.limitBytes === quotaBytes && quota.usedBytes < quotaBytes) return undefined
  return { limitBytes: quotaBytes, usedBytes }
}

/** The slot changes the port of queries to the host's address. Slots of an earlier version left that to the host. */
const isDns = ({ machine }: Policy, port: number | undefined): boolean => port === DNS_PORT || port === machine.dnsPort

/** Flows that the host redirected to the egress proxy are kept: the proxy closes its own connections. */
function allowsFlow(policy: Policy, { destination, port, repliedFrom }: Flow): boolean {
  if (destination === HOST_ADDRESS) {
    return allowsHostPort(policy, port) || isDns(policy, port) || port === policy.machine.s3Port
  }
  return repliedFrom === HOST_ADDRESS || allowsAddress(policy, destination, port)
}
