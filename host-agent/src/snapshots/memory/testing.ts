/** Simulates the memory of a VM in tests: a file mapped privately into the test process. */
import { closeSync, openSync } from 'node:fs'
import koffi from 'koffi'

const libc = koffi.load(null)
const mmap = libc.func('void *mmap(void *address, size_t length, int prot, int flags, int fd, long offset)')
const munmap = libc.func('int munmap(void *address, size_t length)')
const PROT_READ_WRITE = 3
const MAP_PRIVATE = 2

export type FakeMemory = { fd: number; bytes: Buffer; close(): void }

export function mapPrivately(file: string, length: number): FakeMemory {
  const fd = openSync(file, 'r')
  const address: bigint = mmap(null, length, PROT_READ_WRITE, MAP_PRIVATE, fd, 0)
  return {
    fd,
    bytes: Buffer.from(koffi.view(address, length)),
    close() {
      munmap(address, length)
      closeSync(fd)
    },
  }
}
