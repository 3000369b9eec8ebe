/** Memory with a fixed address, unlike that of a Buffer: anonymous, or the content of a file. */
import koffi from 'koffi'
import { bindFunction, bindSystemCall, lastErrorCode, SystemCallError } from './system-call.ts'

const PROT_READ_WRITE = 3
const MAP_SHARED = 0x1
const MAP_PRIVATE = 0x2
const MAP_ANONYMOUS = 0x20
const MAP_FAILED = 2n ** 64n - 1n

const mmap = bindFunction('void *mmap(void *address, size_t length, int prot, int flags, int fd, long offset)')
const munmap = bindSystemCall('int munmap(void *address, size_t length)')

export type Mapping = { address: bigint; bytes: Buffer; unmap(): void }

export const mapAnonymous = (lengthBytes: number): Mapping => map(lengthBytes, MAP_PRIVATE | MAP_ANONYMOUS, -1)

/** Writes go to the file. */
export const mapShared = (fd: number, lengthBytes: number): Mapping => map(lengthBytes, MAP_SHARED, fd)

/** Writes are visible only in this process. */
export const mapPrivate = (fd: number, lengthBytes: number): Mapping => map(lengthBytes, MAP_PRIVATE, fd)

function map(lengthBytes: number, flags: number, fd: number): Mapping {
  const address = mmap(null, lengthBytes, PROT_READ_WRITE, flags, fd, 0) as bigint
  if (BigInt.asUintN(64, address) === MAP_FAILED) throw new SystemCallError('mmap', lastErrorCode())
  return {
    address,
    bytes: Buffer.from(koffi.view(address, lengthBytes)),
    unmap: () => void munmap(address, lengthBytes),
  }
}
