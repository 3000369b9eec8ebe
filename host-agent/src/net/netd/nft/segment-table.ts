/**
 * Limits how many packets a guest sends, and segments them before they are filtered and metered.
 *
 * A guest may send up to 64 KiB as one large packet together with the segment size (GSO). The kernel would count and filter
 * it as one packet with one header, but the wire carries a header per segment: 3.5 % more than was metered with an honest
 * guest, and many times as much with one that requests segments of a few bytes. So every packet passes through a veth pair
 * that accepts only single packets (SEGMENT_VETH, whose offload is disabled in slot.ts; the link's limit gso_max_segs would
 * trust the guest's own count). The slot's table sees what leaves the pair (slot-table.ts). All of it is outside the VM, so
 * it also applies to guests that were saved earlier.
 *
 * Only IPv4 takes this path. Other protocols have no route.
 *
 * Packets are limited twice, each time before anything else is done with them: at the tap, and small ones again where they
 * leave the pair, because one large packet can become a thousand small ones. Segments of the size that honest guests request
 * count once, as the packet that they were part of, so a transfer is not slowed.
 *
 * ARP is answered at the tap, for questions of the guest's own address. The kernel remembers everyone who asks, in a table
 * that all namespaces of the machine share, so questions in other names are dropped. The guest's own address is known
 * (slot.ts). `meta protocol` is what the kernel will process the frame as: it also finds ARP in a frame with a VLAN tag.
 */
import { SEGMENT_VETH, SLOT_TABLE, TAP } from '../../names.ts'

/** The addresses that the guest may use in ARP. */
export const ARP_SENDERS = 'arp_senders'

/** In seconds of the rate. A queue of a guest's network card holds 256 packets. */
const BURST_SECONDS = 0.1
/** Every host accepts packets of this size (RFC 791), so no path makes an honest guest request smaller segments. */
const SMALL_BYTES = 576

export function renderSegmentTable(packetsPerSecond: number): string {
  const burst = Math.ceil(BURST_SECONDS * packetsPerSecond)
  const tooMany = `limit rate over ${packetsPerSecond}/second burst ${burst} packets drop`
  return `
table netdev ${SLOT_TABLE} {
  set ${ARP_SENDERS} { type ipv4_addr; }
  chain segment {
    type filter hook ingress device "${TAP}" priority filter; policy accept;
    ${tooMany}
    meta protocol arp arp saddr ip != @${ARP_SENDERS} drop
    ether type ip ether daddr set ${SEGMENT_VETH.exitMac} fwd to "${SEGMENT_VETH.entry}"
  }
  chain segments {
    type filter hook ingress device "${SEGMENT_VETH.exit}" priority filter; policy accept;
    meta length < ${SMALL_BYTES} ${tooMany}
  }
}
`
}
