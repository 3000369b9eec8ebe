/**
 * How much of a volume must stay free, and what happens below it (docs/decisions/0049-bounded-disks.md):
 *
 *   floor     nothing new is started that needs space: creates, forks, resizes, builds, imports, uploads
 *   stop      guests that write are stopped until the floor is free again
 *   last      all guests are stopped; a pause is refused that would leave less
 *
 * The file that is reserved for PostgreSQL (postgres/reserve-file.ts) is released below a level that is no higher than the last one,
 * unless the operator has set a very low floor: what it gives is not for guests.
 */
import { statfsSync } from 'node:fs'
import { dirname } from 'node:path'
import { integer } from './config.ts'

const MIB = 1024 * 1024

export const DISK_FLOOR = integer('WARREN_DISK_FLOOR_MIB', {
  default: 0,
  min: 0,
  max: 100_000_000,
  defaultText: 'a twentieth of the volume, from 256 to 4096',
  description:
    'Space in MiB that must stay free on the volume of WARREN_DATA_DIR. Below it creates, forks, resizes, builds, imports and ' +
    'uploads are refused; below half of it guests that write are stopped until there is space.',
})

const FLOOR_SHARE = 0.05
const FLOOR_MIN_BYTES = 256 * MIB
const FLOOR_MAX_BYTES = 4096 * MIB
/** Of the floor. */
const STOP_SHARE = 0.5
const LAST_SHARE = 0.2
const RESERVE_SHARE = 0.02
const RESERVE_MIN_BYTES = 32 * MIB
const RESERVE_MAX_BYTES = 256 * MIB

export type DiskSpace = { totalBytes: number; freeBytes: number }
export type DiskLevels = { floorBytes: number; stopBytes: number; lastBytes: number }

/**
 * Of the volume that holds the folder, or its nearest parent that exists. Synchronous, because the kernel answers from memory,
 * and because requests must be served in the order in which they came.
 */
export function readDiskSpace(folder: string): DiskSpace {
  try {
    const { blocks, bavail, bsize } = statfsSync(folder)
    return { totalBytes: blocks * bsize, freeBytes: bavail * bsize }
  } catch (error) {
    const { code = '' } = error as NodeJS.ErrnoException
    if (!['ENOENT', 'ENOTDIR'].includes(code) || dirname(folder) === folder) throw error
    return readDiskSpace(dirname(folder))
  }
}

/** `floorMib`: WARREN_DISK_FLOOR_MIB, 0 for the default. */
export function diskLevels({ totalBytes }: Pick<DiskSpace, 'totalBytes'>, floorMib: number): DiskLevels {
  const share = Math.min(Math.max(totalBytes * FLOOR_SHARE, FLOOR_MIN_BYTES), FLOOR_MAX_BYTES)
  const floorBytes = floorMib > 0 ? floorMib * MIB : Math.floor(share)
  const stopBytes = floorBytes * STOP_SHARE
  // Guests and pauses leave at least what the released reserve gives PostgreSQL.
  const lastBytes = Math.min(Math.max(floorBytes * LAST_SHARE, reserveBytes(totalBytes)), stopBytes)
  return { floorBytes, stopBytes, lastBytes }
}

/** The size of the file that is reserved for PostgreSQL, and the free space below which it is released. */
export const reserveBytes = (totalBytes: number): number =>
  Math.floor(Math.min(Math.max(totalBytes * RESERVE_SHARE, RESERVE_MIN_BYTES), RESERVE_MAX_BYTES) / MIB) * MIB

export const mib = (bytes: number): number => Math.floor(bytes / MIB)

/** Why nothing new may be started on this volume, or undefined. */
export function findShortage(space: DiskSpace, { floorBytes }: DiskLevels): string | undefined {
  if (space.freeBytes >= floorBytes) return undefined
  return `only ${mib(space.freeBytes)} MiB of disk space are free, and ${mib(floorBytes)} MiB must stay free`
}
