/**
 * The nftables table inside a slot's namespace. It drops what does not come from the guest's address, and decides what the
 * sandbox may send: slot-policy.ts fills the chains `egress`, `ingress` and `passed` and replaces them in one transaction. An unclaimed slot may already have rules, so that a claim need not add them; nothing
 * passes before the claim, because `owned` is empty.
 *
 * The rules are here and not on the host so that a sandbox with a thousand rules does not slow the others, and so that they
 * are deleted with the namespace.
 *
 * What the guest sends comes from the exit of SEGMENT_VETH as single packets (segment-table.ts); what it receives goes to
 * the tap.
 *
 * The claim adds the guest's address to `owned`. A guest has the address of its sandbox, except one that was saved by an
 * agent which cannot change its address: it keeps INITIAL_GUEST_ADDRESS, and the claim adds two entries to the map
 * `addresses`, which is empty otherwise. This mapping is stateless, so a restored clone has no connection state to drop. The
 * packet quoted inside an ICMP error is not mapped: such a guest does not see "fragmentation needed" or the replies of
 * traceroute. Nothing depends on them, because the guest has the MTU of the uplink and TCP is clamped on the host.
 *
 * A veth pair between namespaces loses the kernel's packet mark but not the packet's DSCP field. So the slot sets the DSCP
 * to tell the host what to do (MARK), after it has cleared the value that the guest set.
 *
 * Slots outlive the host agent, so a newer version changes rules in tables that an older one created: the chains, sets and
 * counters to which slot-policy.ts refers, and the values of MARK, must not change.
 */
import { CLOSED_RANGES } from '@warren/protocol'
import { addressBytes } from '../../cidr.ts'
import { INNER_VETH, SEGMENT_VETH, SLOT_TABLE, TAP } from '../../names.ts'
import type { Element } from '../netlink/nft-elements.ts'
import { ARP_SENDERS } from './segment-table.ts'

export const MARK = {
  /** Redirect to the proxy, which checks the name. */
  PROXIED: 1,
  /** A rule allows this address: forward the packet, even to a closed range or to port 53. */
  GRANTED: 2,
  /** To the host, from a sandbox that may only use DNS there. */
  LIMITED: 3,
} as const

/** How long a refused destination is recorded. */
export const REFUSED_SECONDS = 3_600
/** Limit the memory that a guest which tries many destinations can use in the kernel. */
const REFUSED_MAX = 1_024
const FLOWS_MAX = 4_096

export const renderSlotTable = (): string => `
table ip ${SLOT_TABLE} {
  counter out { }
  counter in { }
  map addresses { type ipv4_addr : ipv4_addr; }
  set owned { type ipv4_addr; }
  set closed { type ipv4_addr; flags interval; elements = { ${CLOSED_RANGES.join(', ')} }; }
  set refused { type ipv4_addr . inet_proto . inet_service; size ${REFUSED_MAX}; flags dynamic,timeout; timeout ${REFUSED_SECONDS}s; }
  set refused_other { type ipv4_addr . inet_proto; size ${REFUSED_MAX}; flags dynamic,timeout; timeout ${REFUSED_SECONDS}s; }
  set flows { type ipv4_addr . inet_proto . inet_service; size ${FLOWS_MAX}; flags dynamic,timeout; timeout 1d; }
  chain prerouting {
    type filter hook prerouting priority raw; policy accept;
    iifname "${INNER_VETH}" notrack ip daddr set ip daddr map @addresses
    iifname "${TAP}" drop
    iifname "${SEGMENT_VETH.exit}" ip saddr != @owned drop
    iifname "${SEGMENT_VETH.exit}" notrack
  }
  chain input {
    type filter hook input priority filter; policy drop;
    iifname "${SEGMENT_VETH.exit}" icmp type echo-request accept
  }
  chain passed { }
  chain egress { }
  chain ingress { }
  chain direct {
    tcp flags & (syn | ack) == syn add @flows { ip daddr . meta l4proto . th dport counter }
    meta l4proto udp add @flows { ip daddr . meta l4proto . th dport counter }
    goto passed
  }
  chain ruled {
    meta l4proto { tcp, udp } th dport 53 ip dscp set ${MARK.GRANTED}
    goto direct
  }
  chain refuse {
    meta l4proto { tcp, udp } update @refused { ip daddr . meta l4proto . th dport counter } drop
    update @refused_other { ip daddr . meta l4proto counter } drop
    drop
  }
  chain forward {
    type filter hook forward priority filter; policy drop;
    iifname "${SEGMENT_VETH.exit}" oifname "${INNER_VETH}" ip saddr @owned jump egress
    iifname "${SEGMENT_VETH.exit}" oifname "${INNER_VETH}" goto refuse
    iifname "${INNER_VETH}" oifname "${TAP}" ip daddr @owned jump ingress
  }
  chain postrouting {
    type filter hook postrouting priority srcnat; policy accept;
    oifname "${INNER_VETH}" ip saddr set ip saddr map @addresses
  }
}
`

export type Owner = { ip: string; guestAddress: string }

/** The commands that give the slot the address of its sandbox. */
export const renderOwner = ({ ip, guestAddress }: Owner): string =>
  [
    ...(guestAddress === ip
      ? []
      : [`add element ip ${SLOT_TABLE} addresses { ${ip} : ${guestAddress}, ${guestAddress} : ${ip} }`]),
    `add element ip ${SLOT_TABLE} owned { ${guestAddress} }`,
    `add element netdev ${SLOT_TABLE} ${ARP_SENDERS} { ${guestAddress} }`,
  ].join('\n')

/** The same as elements for netlink, for a slot that already has its rules. */
export function ownerElements({ ip, guestAddress }: Owner): Element[] {
  const [outer, inner] = [addressBytes(ip), addressBytes(guestAddress)]
  const mapped = [
    { set: 'addresses', key: outer, value: inner },
    { set: 'addresses', key: inner, value: outer },
  ]
  const arp = { family: 'netdev', set: ARP_SENDERS, key: inner } as const
  return [...(guestAddress === ip ? [] : mapped), { set: 'owned', key: inner }, arp]
}
