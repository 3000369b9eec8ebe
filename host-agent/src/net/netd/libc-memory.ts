/** Memory files and holes, by FFI; only netd imports this (see libc.ts). */
import { ftruncateSync } from 'node:fs'
import { getSystemErrorName } from 'node:util'
import koffi from 'koffi'
import { SystemCallError } from './libc.ts'

const libc = koffi.load(null)
const memfdCreate = libc.func('int memfd_create(str name, uint flags)')
const fcntl = libc.func('int fcntl(int fd, int command, int value)')
const lseek = libc.func('long lseek(int fd, long offset, int whence)')

const MFD_CLOEXEC = 1
const MFD_ALLOW_SEALING = 2
const F_ADD_SEALS = 1033
const SEEK_DATA = 3
const SEEK_HOLE = 4

export function createMemoryFile(name: string, sizeBytes: number): number {
  const fd = must('memfd_create', memfdCreate(name, MFD_CLOEXEC | MFD_ALLOW_SEALING))
  ftruncateSync(fd, sizeBytes)
  return fd
}

export const addSeals = (fd: number, seals: number): void => void must('fcntl', fcntl(fd, F_ADD_SEALS, seals))

/** Where data begins at or after `offset`; undefined when only a hole follows. */
export function seekData(fd: number, offset: number): number | undefined {
  const at = Number(lseek(fd, offset, SEEK_DATA))
  if (at >= 0) return at
  if (errorName() === 'ENXIO') return undefined
  throw new SystemCallError('lseek', errorName())
}

export const seekHole = (fd: number, offset: number): number => must('lseek', lseek(fd, offset, SEEK_HOLE))

const errorName = (): string => getSystemErrorName(-koffi.errno())

function must(call: string, answer: unknown): number {
  if (Number(answer) < 0) throw new SystemCallError(call, errorName())
  return Number(answer)
}
