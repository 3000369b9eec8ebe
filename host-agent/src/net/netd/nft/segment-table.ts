/**
 * Segments what a guest sends before it is filtered and metered.
 *
 * A guest may send up to 64 KiB as one large packet together with the segment size (GSO). The kernel would count and filter
 * it as one packet with one header, but the wire carries a header per segment: 3.5 % more than was metered with an honest
 * guest, and many times as much with one that requests segments of a few bytes. So every packet passes through a veth pair
 * that accepts only single packets (SEGMENT_VETH, whose offload is disabled in slot.ts; the link's limit gso_max_segs would
 * trust the guest's own count). The slot's table sees what leaves the pair (slot-table.ts). All of it is outside the VM, so
 * it also applies to guests that were saved earlier.
 *
 * Only IPv4 takes this path. ARP is answered at the tap, and other protocols have no route.
 */
import { SEGMENT_VETH, SLOT_TABLE, TAP } from '../../names.ts'

export const renderSegmentTable = (): string => `
table netdev ${SLOT_TABLE} {
  chain segment {
    type filter hook ingress device "${TAP}" priority filter; policy accept;
    ether type ip ether daddr set ${SEGMENT_VETH.exitMac} fwd to "${SEGMENT_VETH.entry}"
  }
}
`
