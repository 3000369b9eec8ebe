/**
 * Stops guests before they fill the disk of the host, on which PostgreSQL and the records of sandboxes may be as well.
 *
 * When less than the stop level is free (kit/src/disk-space.ts), guests that have written since their writes were counted last are
 * stopped; below the last level all of them, without a count. When the floor is free again, they continue. A guest that is stopped
 * loses nothing: its CPUs are paused as for a pause, and its writes wait. The guests that do not write keep running.
 *
 * A QEMU process may be slow to answer, or not answer at all. No look waits for it, so it cannot keep the guard from the other
 * guests, and a count that fails is taken for a write.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { mib } from '@warren/kit/disk-space'
import type { Log } from '@warren/kit/log'
import type { Volume } from './volume.ts'

/** What the guard needs of a VMM. Each call ends within a few seconds, whatever QEMU does. */
export type GuardedVmm = {
  record: { id: string }
  readonly waitsForDisk: boolean
  /** Counts every write that the guest's disk has received. */
  countWrites(): Promise<number>
  /** Gives false if its CPUs are paused already, for an operation. */
  holdForDisk(): Promise<boolean>
  /** If it fails, the guest is still held. */
  releaseFromDisk(): Promise<void>
  qmp: { closed: Promise<unknown> }
}

export type DiskGuard = {
  /** From now on the VMM is stopped when the disk is full, until it exits or `remove` is called. */
  add(vmm: GuardedVmm): { remove(): void }
  /** The number of guests that are stopped. */
  waiting(): number
  run(signal: AbortSignal): Promise<void>
  /** One look at the volume, which `run` repeats. Settles when the guests that it concerns have answered; `run` does not wait. */
  look(): Promise<void>
}

const CALM_MS = 500
/** A fast disk takes some hundred MiB per second. */
const ALERT_MS = 50
/** In floors: from here on the volume is looked at more often. */
const ALERT_FACTOR = 2
/** In stop levels: from here on writes are counted, so that the writers are known when the stop level is reached. */
const COUNT_FACTOR = 1.5
/** Of the stop level: writes are counted when free space fell by so much since the last count. */
const COUNT_STEP = 1 / 64
/** They are also counted this often: what one guest writes can be hidden by what another one frees. */
const COUNT_MS = 1_000

type Guarded = { writes?: number; isCounting?: boolean; isChanging?: boolean }

export function createDiskGuard(volume: Volume, log: Pick<Log, 'warn' | 'info' | 'error'>): DiskGuard {
  const vmms = new Map<GuardedVmm, Guarded>()
  let isAlert = false
  let isShort = false
  let counted: { at: number; freeBytes: number } | undefined

  async function look(): Promise<void> {
    const { freeBytes } = volume.read()
    const { floorBytes, stopBytes, lastBytes } = volume.levels
    isAlert = freeBytes < floorBytes * ALERT_FACTOR
    isShort = freeBytes < stopBytes
    if (freeBytes >= stopBytes * COUNT_FACTOR) forgetCounts()
    if (freeBytes >= floorBytes) await forEach((vmm, state) => release(vmm, state, freeBytes))
    else if (freeBytes < lastBytes) await forEach((vmm, state) => hold(vmm, state, freeBytes))
    else if (freeBytes < stopBytes * COUNT_FACTOR && isCountDue(freeBytes)) {
      await forEach((vmm, state) => count(vmm, state, freeBytes))
    }
  }

  const forEach = (work: (vmm: GuardedVmm, state: Guarded) => Promise<void>): Promise<unknown> =>
    Promise.all([...vmms].map(([vmm, state]) => work(vmm, state)))

  /** With many guests, counts cost more than looks. Without a fall of free space, a writer cannot do harm. */
  function isCountDue(freeBytes: number): boolean {
    const now = performance.now()
    const fallBytes = volume.levels.stopBytes * COUNT_STEP
    const isDue = !counted || freeBytes <= counted.freeBytes - fallBytes || now - counted.at >= COUNT_MS
    if (isDue) counted = { at: now, freeBytes }
    return isDue
  }

  function forgetCounts(): void {
    counted = undefined
    for (const state of vmms.values()) delete state.writes
  }

  async function count(vmm: GuardedVmm, state: Guarded, freeBytes: number): Promise<void> {
    if (vmm.waitsForDisk || state.isCounting) return
    const before = state.writes
    state.isCounting = true
    let hasWritten: boolean
    try {
      state.writes = await vmm.countWrites()
      hasWritten = before !== undefined && state.writes > before
    } catch {
      hasWritten = true // It does not answer, and may write.
    } finally {
      state.isCounting = false
    }
    if (isShort && hasWritten) await hold(vmm, state, freeBytes)
  }

  async function hold(vmm: GuardedVmm, state: Guarded, freeBytes: number): Promise<void> {
    if (vmm.waitsForDisk || state.isChanging || !vmms.has(vmm)) return
    state.isChanging = true
    try {
      if (!(await vmm.holdForDisk())) return
      log.warn({ vmm: vmm.record.id, freeMib: mib(freeBytes) }, 'guest stopped: the host disk is full or failing')
    } catch (error) {
      log.error({ err: error, vmm: vmm.record.id }, 'failed to stop a guest')
    } finally {
      state.isChanging = false
    }
  }

  async function release(vmm: GuardedVmm, state: Guarded, freeBytes: number): Promise<void> {
    if (!vmm.waitsForDisk || state.isChanging) return
    state.isChanging = true
    try {
      await vmm.releaseFromDisk()
      log.info({ vmm: vmm.record.id, freeMib: mib(freeBytes) }, 'guest continues: the host disk has space again')
    } catch (error) {
      log.error({ err: error, vmm: vmm.record.id }, 'failed to continue a guest; it is tried again')
    } finally {
      state.isChanging = false
    }
  }

  return {
    add(vmm) {
      vmms.set(vmm, {})
      const remove = () => void vmms.delete(vmm)
      void vmm.qmp.closed.then(remove)
      return { remove }
    },
    waiting: () => [...vmms.keys()].filter((vmm) => vmm.waitsForDisk).length,
    look,
    async run(signal) {
      while (!signal.aborted) {
        void look().catch((error) => log.error({ err: error }, 'failed to check the space on the disk'))
        await delay(isAlert ? ALERT_MS : CALM_MS, undefined, { signal, ref: false }).catch(() => {}) // The loop ends.
      }
    },
  }
}
