/**
 * How much of a volume must stay free, and what happens below it (docs/decisions/0049-bounded-disks.md):
 *
 *   floor     nothing new is started that needs space: creates, forks, resizes, builds, imports, uploads
 *   stop      guests that write are stopped until the floor is free again
 *   last      all guests are stopped; a pause is refused that would leave less
 *
 * The file that is reserved for PostgreSQL is released below a level that is lower than these (postgres/reserve-file.ts).
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
  return { floorBytes, stopBytes: floorBytes * STOP_SHARE, lastBytes: floorBytes * LAST_SHARE }
}

export const mib = (bytes: number): number => Math.floor(bytes / MIB)

/** Why nothing new may be started on this volume, or undefined. */
export function findShortage(space: DiskSpace, { floorBytes }: DiskLevels): string | undefined {
  if (space.freeBytes >= floorBytes) return undefined
  return `only ${mib(space.freeBytes)} MiB of disk space are free, and ${mib(floorBytes)} MiB must stay free`
}
