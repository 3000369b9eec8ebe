/** The space on the volume of the data directory: what operations check before they start, and what the host reports. */
import { lstat, readdir } from 'node:fs/promises'
import path from 'node:path'
import { abortable } from '@warren/kit/abortable'
import { type DiskLevels, type DiskSpace, diskLevels, findShortage, mib, readDiskSpace } from '@warren/kit/disk-space'
import type { HostVolume } from '@warren/protocol'
import { HostError } from '../host-error.ts'

export type Volume = {
  levels: DiskLevels
  read(): DiskSpace
  /** Throws `disk_full` below the floor. `what`: "a new sandbox". */
  checkFloor(what: string): void
  /**
   * Runs `write`, which writes up to `bytes`. Throws `disk_full` before if that would use up what PostgreSQL needs. What other
   * calls are about to write counts: one that does not fit beside them waits for them, until `signal` is aborted.
   */
  withRoom<T>(what: string, bytes: number, write: () => Promise<T>, signal?: AbortSignal): Promise<T>
  /** From now on so much of what is in the folders of sandboxes is not reported as theirs. */
  leaveOut(countBytes: () => number): void
  report(): Promise<HostVolume>
}

/** Where disks and saved states of sandboxes are (vmm/folders.ts, snapshots/store.ts). */
const SANDBOX_FOLDERS = ['bodies', 'snapshots']
/** Sandboxes hold thousands of files at most; what they hold is needed for planning only. */
const MEASURE_MS = 20_000
const BLOCK_BYTES = 512

export function openVolume(
  dataDir: string,
  floorMib: number,
  read = () => readDiskSpace(dataDir),
  sum = sumFolders,
): Volume {
  const levels = diskLevels(read(), floorMib)
  const writing = new Map<Promise<unknown>, number>()
  let countLeftOut = () => 0
  let measured: { endedAt: number; freeBytes: number; bytes: number } | undefined
  let measuring: Promise<void> | undefined
  const measure = async () => {
    const folders = SANDBOX_FOLDERS.map((name) => path.join(dataDir, name))
    // Free space is read first: what is freed during the sum then counts as freed since.
    const { freeBytes } = read()
    const bytes = await sum(folders)
    measured = { endedAt: Date.now(), freeBytes, bytes }
  }
  /** Waits only for the first sum. A sum can take long on a busy disk, and heartbeats must not wait for it. */
  const findMeasured = async () => {
    if (!measured || Date.now() - measured.endedAt > MEASURE_MS) {
      measuring ??= measure().finally(() => {
        measuring = undefined
      })
      measuring.catch(() => {}) // The next report tries again.
    }
    while (!measured) await measuring
    return measured
  }
  return {
    levels,
    read,

    checkFloor(what) {
      const shortage = findShortage(read(), levels)
      if (shortage !== undefined) throw new HostError('disk_full', `no space for ${what}: ${shortage}`)
    },

    async withRoom(what, bytes, write, signal) {
      for (;;) {
        signal?.throwIfAborted()
        const { freeBytes } = read()
        if (freeBytes - bytes < levels.lastBytes) {
          const numbers = `it needs up to ${mib(bytes)} MiB, and ${mib(freeBytes)} MiB of disk space are free`
          throw new HostError('disk_full', `no space for ${what}: ${numbers}`)
        }
        const promised = [...writing.values()].reduce((sum, one) => sum + one, 0)
        if (freeBytes - promised - bytes >= levels.lastBytes) break
        const written = Promise.race(writing.keys())
        await (signal ? abortable(written, signal) : written)
      }
      const { promise: ended, resolve } = Promise.withResolvers<void>()
      writing.set(ended, bytes)
      try {
        return await write()
      } finally {
        writing.delete(ended)
        resolve()
      }
    },

    leaveOut(countBytes) {
      countLeftOut = countBytes
    },

    async report() {
      const last = await findMeasured()
      const { totalBytes, freeBytes } = read()
      // What was freed since may have been theirs. Counted twice, it would be promised twice.
      const freedBytes = Math.max(freeBytes - last.freeBytes, 0)
      const sandboxesBytes = Math.max(last.bytes - freedBytes - countLeftOut(), 0)
      return {
        total_mib: mib(totalBytes),
        free_mib: mib(freeBytes),
        floor_mib: mib(levels.floorBytes),
        sandboxes_mib: mib(sandboxesBytes),
      }
    },
  }
}

/** What is allocated on disk, and a file with several names once. */
export async function sumFolders(folders: readonly string[]): Promise<number> {
  const seen = new Set<number>()
  let bytes = 0
  const visit = async (folder: string): Promise<void> => {
    const entries = await readdir(folder, { withFileTypes: true }).catch(() => []) // Deleted meanwhile.
    for (const entry of entries) {
      const file = path.join(folder, entry.name)
      if (entry.isDirectory()) await visit(file)
      else if (entry.isFile()) {
        const found = await lstat(file).catch(() => undefined)
        if (!found || (found.nlink > 1 && seen.has(found.ino))) continue
        seen.add(found.ino)
        bytes += found.blocks * BLOCK_BYTES
      }
    }
  }
  for (const folder of folders) await visit(folder)
  return bytes
}
