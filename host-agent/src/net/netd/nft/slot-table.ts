/**
 * The table inside a slot's namespace: between the constant address of the guest and the sandbox's own, and the whole
 * judgement of what the sandbox may send (slot-policy.ts fills `egress`, `ingress` and `passed`, and replaces them in one
 * transaction). A slot without an owner may have rules already, so that a claim finds them there; nothing passes all the
 * same, because `owned` is empty.
 *
 * Rules live here and not on the host, so a sandbox with a thousand rules slows no other one, and all of it goes with
 * the namespace.
 *
 * What the guest sends comes from the exit of the cut (segment-table.ts), as single packets; what it gets goes to the tap.
 *
 * The address mapping is stateless, so a clone wakes with nothing to forget. It is a map of two entries that are added
 * when the slot is claimed, together with the guest's address in `owned`. Not mapped is the packet quoted inside an
 * ICMP error: the guest does not see "fragmentation needed" or traceroute's answers. The guest's MTU is the uplink's
 * and TCP is clamped on the host, so nothing depends on them.
 *
 * Links between machines inside this one carry no mark of the kernel's, but they carry the packet's DSCP. So the slot
 * stamps what the host must know there (STAMP); whatever the guest had written into it is wiped first.
 */
import { addressBytes } from '../../cidr.ts'
import { CLOSED_RANGES } from '../../closed-ranges.ts'
import { CUT, GUEST_ADDRESS, INNER_VETH, SLOT_TABLE, TAP } from '../../names.ts'
import type { Element } from '../netlink/nft-elements.ts'

export const STAMP = {
  /** To the proxy, which judges by name. */
  PROXIED: 1,
  /** A rule names this address, closed range or not, port 53 or not: pass it as it is. */
  GRANTED: 2,
  /** To the host, by a sandbox that may ask for names there and nothing else. */
  LIMITED: 3,
} as const

/** Also how long a refused destination is remembered. */
export const REFUSED_SECONDS = 3_600
/** Bounds what a guest that tries everything can make the kernel remember. */
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
    iifname "${CUT.exit}" ip saddr != ${GUEST_ADDRESS} drop
    iifname "${CUT.exit}" notrack
  }
  chain input {
    type filter hook input priority filter; policy drop;
    iifname "${CUT.exit}" icmp type echo-request accept
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
    meta l4proto { tcp, udp } th dport 53 ip dscp set ${STAMP.GRANTED}
    goto direct
  }
  chain refuse {
    meta l4proto { tcp, udp } update @refused { ip daddr . meta l4proto . th dport counter } drop
    update @refused_other { ip daddr . meta l4proto counter } drop
    drop
  }
  chain forward {
    type filter hook forward priority filter; policy drop;
    iifname "${CUT.exit}" oifname "${INNER_VETH}" ip saddr @owned jump egress
    iifname "${CUT.exit}" oifname "${INNER_VETH}" goto refuse
    iifname "${INNER_VETH}" oifname "${TAP}" ip daddr @owned jump ingress
  }
  chain postrouting {
    type filter hook postrouting priority srcnat; policy accept;
    oifname "${INNER_VETH}" ip saddr set ip saddr map @addresses
  }
}
`

export const renderOwner = (ip: string): string =>
  [
    `add element ip ${SLOT_TABLE} addresses { ${ip} : ${GUEST_ADDRESS}, ${GUEST_ADDRESS} : ${ip} }`,
    `add element ip ${SLOT_TABLE} owned { ${GUEST_ADDRESS} }`,
  ].join('\n')

/** The same, for a slot whose rules are there already. */
export function ownerElements(ip: string): Element[] {
  const [outer, inner] = [addressBytes(ip), addressBytes(GUEST_ADDRESS)]
  return [
    { set: 'addresses', key: outer, value: inner },
    { set: 'addresses', key: inner, value: outer },
    { set: 'owned', key: inner },
  ]
}
