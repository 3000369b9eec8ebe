/** Offload features of a network interface, as `ethtool -K` sets them. */
import koffi from 'koffi'
import { closeSocket, openSocket } from './socket.ts'
import { bindSystemCall } from './system-call.ts'

const AF_INET = 2
const SOCK_DGRAM = 2
const SIOCETHTOOL = 0x8946
const ETHTOOL_SFEATURES = 0x3b
/** The kernel's features are 64 bits, in two words of 32. */
const FEATURE_WORDS = 2
/** The bits from NETIF_F_GSO_SHIFT on: every kind of packet that is passed on whole and segmented later. */
const SEGMENTATION_FEATURES = [0xffff_0000, 0x0000_000f]

koffi.struct('EthtoolRequest', {
  name: koffi.array('char', 16, 'String'),
  data: 'uint8_t *',
  unused: koffi.array('uint8_t', 16),
})
const ioctl = bindSystemCall('int ioctl(int fd, ulong request, EthtoolRequest *data)')

/**
 * From now on the kernel segments every packet before it enters the interface. Acts in the network namespace of this
 * thread.
 */
export function disableSegmentationOffload(interfaceName: string): void {
  const features = Buffer.alloc(8 + 8 * FEATURE_WORDS)
  features.writeUInt32LE(ETHTOOL_SFEATURES, 0)
  features.writeUInt32LE(FEATURE_WORDS, 4)
  // Each word: which bits are valid, then their requested values, which stay 0.
  for (const [word, bits] of SEGMENTATION_FEATURES.entries()) features.writeUInt32LE(bits, 8 + 8 * word)
  const fd = openSocket(AF_INET, SOCK_DGRAM, 0)
  try {
    // A result above 0 means that the kernel or the interface lacks some of the features, which is as good.
    ioctl(fd, SIOCETHTOOL, { name: interfaceName, data: features, unused: new Uint8Array(16) })
  } catch (error) {
    throw new Error(`failed to disable segmentation offload of ${interfaceName}`, { cause: error })
  } finally {
    closeSocket(fd)
  }
}
