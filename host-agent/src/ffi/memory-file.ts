/** Files in memory (memfd), their seals, and the holes of sparse files. */
import { ftruncateSync } from 'node:fs'
import { bindSystemCall, hasCode } from './system-call.ts'

const MFD_CLOEXEC = 1
const MFD_ALLOW_SEALING = 2
const F_ADD_SEALS = 1033
/** F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE. */
const ALL_SEALS = 0xf
const SEEK_DATA = 3
const SEEK_HOLE = 4

const memfdCreate = bindSystemCall('int memfd_create(str name, uint flags)')
const fcntl = bindSystemCall('int fcntl(int fd, int command, int value)')
const lseek = bindSystemCall('long lseek(int fd, long offset, int whence)')

export function createMemoryFile(name: string, sizeBytes: number): number {
  const fd = memfdCreate(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)
  ftruncateSync(fd, sizeBytes)
  return fd
}

/** After this no process can change the content or the size of the file. */
export const sealMemoryFile = (fd: number): void => void fcntl(fd, F_ADD_SEALS, ALL_SEALS)

/** The offset of the first data at or after `offset`; undefined when only a hole follows. */
export function seekData(fd: number, offset: number): number | undefined {
  try {
    return lseek(fd, offset, SEEK_DATA)
  } catch (error) {
    if (hasCode(error, 'ENXIO')) return undefined
    throw error
  }
}

export const seekHole = (fd: number, offset: number): number => lseek(fd, offset, SEEK_HOLE)
