/** Tap devices: a network card whose cable is a file descriptor. */
import { closeSync, openSync } from 'node:fs'
import { ioctlData, ioctlValue } from './libc.ts'

const TUNSETIFF = 0x400454ca
const TUNSETPERSIST = 0x400454cb
const TUNSETOWNER = 0x400454cc
/** IFF_TAP, IFF_NO_PI, IFF_VNET_HDR: whole frames, each with the virtio header QEMU passes on to the guest. */
const FLAGS = 0x5002
const IFREQ_BYTES = 40

/** Makes the device in the namespace of this thread and leaves it there; `ownerUid` may attach to it later. */
export function createTap(name: string, ownerUid: number): void {
  const fd = attachTap(name)
  try {
    ioctlValue(fd, TUNSETOWNER, ownerUid)
    ioctlValue(fd, TUNSETPERSIST, 1)
  } finally {
    closeSync(fd)
  }
}

/** The cable's end. While somebody holds it, its namespace lives, mounted or not. */
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
