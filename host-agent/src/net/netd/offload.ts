/** What a link takes in one piece, by FFI; only netd imports this (see libc.ts). */
import { getSystemErrorName } from 'node:util'
import koffi from 'koffi'
import { closeSocket, openSocket, SystemCallError } from './libc.ts'

const AF_INET = 2
const SOCK_DGRAM = 2
const SIOCETHTOOL = 0x8946
const ETHTOOL_SFEATURES = 0x3b
/** The kernel's features are 64 bits, in two words. */
const WORDS = 2
/** NETIF_F_GSO_SHIFT and up: everything that is handed over in one piece to become many packets. */
const PIECES = [0xffff_0000, 0x0000_000f]

koffi.struct('EthtoolRequest', {
  name: koffi.array('char', 16, 'String'),
  data: 'uint8_t *',
  unused: koffi.array('uint8_t', 16),
})
const ioctl = koffi.load(null).func('int ioctl(int fd, ulong request, EthtoolRequest *data)')

/** From now on whatever enters the link is cut into single packets first. In the namespace of this thread. */
export function takeSinglePackets(interfaceName: string): void {
  const features = Buffer.alloc(8 + 8 * WORDS)
  features.writeUInt32LE(ETHTOOL_SFEATURES, 0)
  features.writeUInt32LE(WORDS, 4)
  for (const [word, bits] of PIECES.entries()) features.writeUInt32LE(bits, 8 + 8 * word) // valid; requested stays 0
  const fd = openSocket(AF_INET, SOCK_DGRAM, 0)
  try {
    // Above 0: some of them this kernel does not know, or the link never had.
    const answer: number = ioctl(fd, SIOCETHTOOL, { name: interfaceName, data: features, unused: new Uint8Array(16) })
    if (answer < 0) throw new SystemCallError(`ethtool of ${interfaceName}`, getSystemErrorName(-koffi.errno()))
  } finally {
    closeSocket(fd)
  }
}
