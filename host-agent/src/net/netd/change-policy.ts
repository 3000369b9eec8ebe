/** A new policy for a slot in use: one transaction in its table, then an end to the flows it no longer allows. */
import { BANDWIDTH_UNMETERED } from '@warren/protocol'
import { HOST_ADDRESS, netnsPath } from '../names.ts'
import type { PolicyChange } from '../netd-protocol.ts'
import { allowsAddress, type Policy } from '../policy.ts'
import type { Kernel } from './kernel.ts'
import { deleteFlowsFrom, type Flow } from './netlink/conntrack.ts'
import { Nft } from './nft/nft.ts'
import { type Budget, renderSlotPolicy } from './nft/slot-policy.ts'
import { type Counts, readCounts } from './slot-report.ts'

const DNS_PORT = 53
/** By then the kernel has freed what a transaction replaced. */
const FREE_MS = 100

export function changePolicy(kernel: Kernel, { slot, ip, policy, cut }: PolicyChange): void {
  kernel.host.enter(netnsPath(kernel.instance, slot), () => {
    const nft = contextOf(slot)
    const counts = readCounts()
    nft.run(renderSlotPolicy(policy, newBudget(policy, counts), counts.quota !== undefined))
  })
  // What it sends is stopped by now. What others send it for a flow they know would still come in.
  if (cut) deleteFlowsFrom(ip, (flow) => !survives(policy, flow))
}

/**
 * Contexts of slots that were changed a moment ago. Closed at once, their sockets would wait until the kernel has freed
 * the old rules, some 10 ms in which netd stands still. Each holds its namespace, so a release lets go of it first.
 */
const contexts = new Map<number, { nft: Nft; timer: NodeJS.Timeout }>()

/** In the slot's namespace. */
export function contextOf(slot: number): Nft {
  const nft = contexts.get(slot)?.nft ?? new Nft()
  clearTimeout(contexts.get(slot)?.timer)
  contexts.set(slot, { nft, timer: setTimeout(() => letGo(slot), FREE_MS) })
  return nft
}

export function letGo(slot: number): void {
  const found = contexts.get(slot)
  clearTimeout(found?.timer)
  contexts.delete(slot)
  found?.nft[Symbol.dispose]()
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
