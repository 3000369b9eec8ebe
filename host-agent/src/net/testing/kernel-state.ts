/** Reads nftables rules and tracked flows in tests, so that they need neither the `nft` nor the `conntrack` command. */
import { HostNamespace } from '../../ffi/network-namespace.ts'
import { Nft } from '../../ffi/nftables.ts'
import { netnsPath } from '../names.ts'
import { type Flow, findFlowsFrom, openConntrack } from '../netd/netlink/conntrack.ts'

/** As printed by `nft list ruleset`. */
export function listRuleset(): string {
  using nft = new Nft()
  return nft.run('list ruleset')
}

export const listSlotRuleset = (instance: string, slot: number): string =>
  new HostNamespace().enter(netnsPath(instance, slot), listRuleset)

export function listFlows(ip: string): Flow[] {
  using conntrack = openConntrack()
  return findFlowsFrom(conntrack, ip)
}
