/** A stand-in for a machine's memory in tests: a file that is mapped privately into this process. */
import { closeSync, openSync } from 'node:fs'
import { mapPrivate } from '../../ffi/memory-mapping.ts'

export type FakeMemory = { fd: number; bytes: Buffer; close(): void }

export function mapPrivately(file: string, length: number): FakeMemory {
  const fd = openSync(file, 'r')
  const { bytes, unmap } = mapPrivate(fd, length)
  return {
    fd,
    bytes,
    close() {
      unmap()
      closeSync(fd)
    },
  }
}
