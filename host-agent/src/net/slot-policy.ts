/** A new policy for a slot in use: one transaction in its table, then an end to the flows it no longer allows. */
import { BANDWIDTH_UNMETERED } from '@warren/protocol'
import type { Kernel } from './kernel.ts'
import { HOST_ADDRESS, netnsPath } from './names.ts'
import type { PolicyChange } from './netd-protocol.ts'
import { deleteFlowsFrom, type Flow } from './netlink/conntrack.ts'
import { Nft } from './nft/nft.ts'
import { type Budget, renderSlotPolicy } from './nft/slot-policy.ts'
import { allowsAddress, type Policy } from './policy.ts'
import { type Counts, readCounts } from './slot-report.ts'

const DNS_PORT = 53
/** By then the kernel has freed what a transaction replaced. Until then the slot's namespace is held. */
const FREE_MS = 100

export function changePolicy(kernel: Kernel, { slot, ip, policy, cut }: PolicyChange): void {
  kernel.host.enter(netnsPath(kernel.instance, slot), () => {
    const nft = new Nft()
    try {
      const counts = readCounts()
      nft.run(renderSlotPolicy(policy, newBudget(policy, counts), counts.quota !== undefined))
    } finally {
      // Closed at once, its socket would wait for the kernel to free the old rules, some 10 ms in which netd stands still.
      setTimeout(() => nft[Symbol.dispose](), FREE_MS)
    }
  })
  // What it sends is stopped by now. What others send it for a flow they know would still come in.
  if (cut) deleteFlowsFrom(ip, (flow) => !survives(policy, flow))
}

/**
 * The kernel's count of the budget goes on as it is, unless the limit changes or it is used up: then it also holds what
 * it dropped, and starts again from what really left.
 */
function newBudget({ quotaBytes }: Policy, { quota, usedBytes }: Counts): Budget | undefined {
  if (quotaBytes === BANDWIDTH_UNMETERED) return undefined
  if (quota !== undefined && quota.limitBytes === quotaBytes && quota.usedBytes < quotaBytes) return undefined
  return { limitBytes: quotaBytes, usedBytes }
}

/** The resolver and the proxy, to which the host turned some, cut their own. */
function survives(policy: Policy, { destination, port, repliedFrom }: Flow): boolean {
  if (destination === HOST_ADDRESS) return policy.reachesHost || port === DNS_PORT
  return repliedFrom === HOST_ADDRESS || allowsAddress(policy, destination, port)
}
