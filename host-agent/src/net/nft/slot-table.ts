/**
 * The table inside a slot's namespace: between the constant address of the guest and the sandbox's own.
 *
 * The mapping is stateless, so a clone wakes with nothing to forget. It is a map of two entries that are added when the
 * slot is claimed; until then no packet has a way out. Quota and counters of a later issue go into `forward`.
 *
 * Not mapped is the packet quoted inside an ICMP error: the guest does not see "fragmentation needed" or traceroute's
 * answers. The guest's MTU is the uplink's and TCP is clamped on the host, so nothing depends on them.
 */
import { GUEST_ADDRESS, INNER_VETH, SLOT_TABLE, TAP } from '../names.ts'

export const renderSlotTable = (): string => `
table ip ${SLOT_TABLE} {
  map addresses { type ipv4_addr : ipv4_addr; }
  chain prerouting {
    type filter hook prerouting priority raw; policy accept;
    iifname "${INNER_VETH}" notrack ip daddr set ip daddr map @addresses
    iifname "${TAP}" ip saddr != ${GUEST_ADDRESS} drop
    iifname "${TAP}" notrack
  }
  chain input {
    type filter hook input priority filter; policy drop;
    iifname "${TAP}" icmp type echo-request accept
  }
  chain forward {
    type filter hook forward priority filter; policy drop;
    iifname "${TAP}" oifname "${INNER_VETH}" accept
    iifname "${INNER_VETH}" oifname "${TAP}" accept
  }
  chain postrouting {
    type filter hook postrouting priority srcnat; policy accept;
    oifname "${INNER_VETH}" ip saddr set ip saddr map @addresses
  }
}
`

export const renderSlotAddress = (ip: string): string =>
  `add element ip ${SLOT_TABLE} addresses { ${ip} : ${GUEST_ADDRESS}, ${GUEST_ADDRESS} : ${ip} }`
