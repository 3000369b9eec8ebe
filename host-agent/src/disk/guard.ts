/**
 * Stops guests before they fill the disk of the host, on which PostgreSQL and the records of sandboxes may be as well.
 *
 * When less than the stop level is free (kit/src/disk-space.ts), guests that have written since the last look are stopped; below the
 * last level all of them. When the floor is free again, they continue. A guest that is stopped loses nothing: its CPUs are
 * paused as for a pause, and its writes wait. The guests that do not write keep running.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { mib } from '@warren/kit/disk-space'
import type { Log } from '@warren/kit/log'
import type { Volume } from './volume.ts'

/** What the guard needs of a VMM. */
export type GuardedVmm = {
  record: { id: string }
  readonly waitsForDisk: boolean
  /** Counts every write that the guest's disk has received. */
  countWrites(): Promise<number>
  /** Gives false if its CPUs are paused already, for an operation. */
  holdForDisk(): Promise<boolean>
  releaseFromDisk(): Promise<void>
  qmp: { closed: Promise<unknown> }
}

export type DiskGuard = {
  /** From now on the VMM is stopped when the disk is full, until it exits or `remove` is called. */
  add(vmm: GuardedVmm): { remove(): void }
  /** The number of guests that are stopped. */
  waiting(): number
  run(signal: AbortSignal): Promise<void>
  /** One look at the volume, which `run` repeats. */
  look(): Promise<void>
}

const CALM_MS = 500
/** A fast disk takes some hundred MiB per second. */
const ALERT_MS = 50
/** In floors: from here on the volume is looked at more often. */
const ALERT_FACTOR = 2
/** In stop levels: from here on writes are counted, so that the writers are known when the stop level is reached. */
const COUNT_FACTOR = 1.5

export function createDiskGuard(volume: Volume, log: Pick<Log, 'warn' | 'info' | 'error'>): DiskGuard {
  const vmms = new Set<GuardedVmm>()
  const writes = new Map<GuardedVmm, number>()
  let isAlert = false

  async function look(): Promise<void> {
    const { freeBytes } = volume.read()
    const { floorBytes, stopBytes, lastBytes } = volume.levels
    isAlert = freeBytes < floorBytes * ALERT_FACTOR
    if (freeBytes >= floorBytes) await releaseAll(freeBytes)
    if (freeBytes >= stopBytes * COUNT_FACTOR) return writes.clear()
    const isShort = freeBytes < stopBytes
    const isLast = freeBytes < lastBytes
    await Promise.all([...vmms].map((vmm) => check(vmm, freeBytes, isShort, isLast)))
  }

  async function check(vmm: GuardedVmm, freeBytes: number, isShort: boolean, isLast: boolean): Promise<void> {
    try {
      if (vmm.waitsForDisk) return
      const before = writes.get(vmm)
      const now = await vmm.countWrites()
      writes.set(vmm, now)
      const hasWritten = before !== undefined && now > before
      if (!isLast && !(isShort && hasWritten)) return
      if (!(await vmm.holdForDisk())) return
      log.warn({ vmm: vmm.record.id, freeMib: mib(freeBytes) }, 'guest stopped: the host disk is full or failing')
    } catch {
      // QEMU exited, or is busy with an operation. The next look asks again.
    }
  }

  async function releaseAll(freeBytes: number): Promise<void> {
    for (const vmm of vmms) {
      if (!vmm.waitsForDisk) continue
      try {
        await vmm.releaseFromDisk()
        log.info({ vmm: vmm.record.id, freeMib: mib(freeBytes) }, 'guest continues: the host disk has space again')
      } catch (error) {
        log.error({ err: error, vmm: vmm.record.id }, 'failed to continue a guest')
      }
    }
  }

  return {
    add(vmm) {
      vmms.add(vmm)
      const remove = () => {
        vmms.delete(vmm)
        writes.delete(vmm)
      }
      void vmm.qmp.closed.then(remove)
      return { remove }
    },
    waiting: () => [...vmms].filter((vmm) => vmm.waitsForDisk).length,
    look,
    async run(signal) {
      while (!signal.aborted) {
        await look().catch((error) => log.error({ err: error }, 'failed to check the space on the disk'))
        await delay(isAlert ? ALERT_MS : CALM_MS, undefined, { signal, ref: false }).catch(() => {}) // The loop ends.
      }
    },
  }
}
