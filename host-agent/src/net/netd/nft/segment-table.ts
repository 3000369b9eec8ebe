/**
 * Between a guest's tap and the rules of its slot: what arrives is cut into packets as a wire carries them.
 *
 * A guest may hand over up to 64 KiB in one piece, with the size of the packets it shall become written beside it, and
 * the kernel would count and judge it as one packet, with one header. The wire carries a header for each: 3.5 % more
 * than was metered with an honest guest, and with one that asks for packets of a few bytes many times as much. So every
 * piece goes into a pair of links that takes single packets only (CUT; offload.ts, because gso_max_segs believes what a
 * guest says of its piece); what comes out of it is what the slot's table sees (slot-table.ts). It stays outside the VM,
 * and guests that were saved before need not know.
 *
 * Only IPv4 goes this way. ARP is answered at the tap; nothing else has anywhere to go.
 */
import { CUT, SLOT_TABLE, TAP } from '../../names.ts'

export const renderCutTable = (): string => `
table netdev ${SLOT_TABLE} {
  chain cut {
    type filter hook ingress device "${TAP}" priority filter; policy accept;
    ether type ip ether daddr set ${CUT.exitMac} fwd to "${CUT.entry}"
  }
}
`
