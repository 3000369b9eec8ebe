/** Tap devices: network interfaces whose other end is a file descriptor. */
import { closeSync, openSync } from 'node:fs'
import { ioctlData, ioctlValue } from './ioctl.ts'

const TUNSETIFF = 0x400454ca
const TUNSETPERSIST = 0x400454cb
const TUNSETOWNER = 0x400454cc
/** IFF_TAP, IFF_NO_PI, IFF_VNET_HDR: Ethernet frames, each after the virtio header that QEMU exchanges with the guest. */
const FLAGS = 0x5002
const IFREQ_BYTES = 40

/** Creates a persistent device in the network namespace of this thread; `ownerUid` may attach to it later. */
export function createTap(name: string, ownerUid: number): void {
  const fd = attachTap(name)
  try {
    ioctlValue(fd, TUNSETOWNER, ownerUid)
    ioctlValue(fd, TUNSETPERSIST, 1)
  } finally {
    closeSync(fd)
  }
}

/** Returns the descriptor. While it is open in any process, its namespace exists, mounted or not. */
export function attachTap(name: string): number {
  const fd = openSync('/dev/net/tun', 'r+')
  try {
    const request = Buffer.alloc(IFREQ_BYTES)
    request.write(name, 0, 15)
    request.writeUInt16LE(FLAGS, 16)
    ioctlData(fd, TUNSETIFF, request)
    return fd
  } catch (error) {
    closeSync(fd)
    throw error
  }
}
