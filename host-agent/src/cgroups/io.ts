/** Finds the disk that the cgroups of VMMs can be limited on. */
import { existsSync, readFileSync, realpathSync, statSync } from 'node:fs'
import path from 'node:path'

/**
 * `major:minor` of the disk that a folder is on: limits of input and output apply to whole disks. Undefined for a file system
 * that is not on one, such as tmpfs, overlayfs, btrfs or a network file system.
 */
export function findDisk(folder: string, sys = '/sys/dev/block'): string | undefined {
  const { dev } = statSync(folder)
  const device = path.join(sys, `${major(dev)}:${minor(dev)}`)
  if (!existsSync(device)) return undefined
  // A partition is a folder in that of its disk.
  const isPartition = existsSync(path.join(device, 'partition'))
  const disk = isPartition ? path.dirname(realpathSync(device)) : device
  return readFileSync(path.join(disk, 'dev'), 'utf8').trim()
}

/** As glibc composes a device number. */
export const major = (dev: number): number => Number((BigInt(dev) >> 8n) & 0xfffn)
export const minor = (dev: number): number => Number((BigInt(dev) & 0xffn) | ((BigInt(dev) >> 12n) & 0xffffff00n))
