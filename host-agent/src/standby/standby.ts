/**
 * Keeps the VMMs of paused sandboxes, with their CPUs paused, for some minutes after everything was saved. A resume within
 * that time continues the same process, in milliseconds. Everything in a VMM on standby is also on disk, so it may be
 * stopped at any time, as a clean page may be dropped from the page cache. It is stopped when memory runs short, when
 * newer pauses need the budget, after STANDBY_MS, and when the host agent stops.
 *
 * The disk that the VMM wrote belongs to the saved generation now and is never written again. So a new one is put on top
 * before the VMM counts as being on standby.
 */
import { withTimeout } from '@warren/kit/timeout'
import type { Deps } from '../deps.ts'
import { isMemoryShort } from '../memory-pressure.ts'
import { freezeForStandby } from '../vmm/disk/live.ts'
import { setSpare } from '../vmm/memory.ts'
import { stopVmm } from '../vmm/release.ts'
import type { Vmm } from '../vmm/vmm.ts'

/** What a VMM costs beside the guest's changed pages: QEMU itself, and the code it has translated. */
const VMM_MIB = 48
const STANDBY_MS = 10 * 60_000
const WATCH_MS = 5_000
/** A resume or delete waits for the freeze, and a QEMU that a guest has taken over may never respond. */
const FREEZE_LIMIT_MS = 20_000

type PausedVm = { sandbox: string; generation: number; ip: string; dirtyBytes: number; diskMib: number }
type StandbyVmm = { vmm: Vmm; ip: string; mib: number; since: number }

export type Standby = ReturnType<typeof createStandby>

export function createStandby(getDeps: () => Deps, budgetMib: number) {
  /** By the object that its memory was saved as, oldest first. */
  const vmms = new Map<string, StandbyVmm>()
  let closed = false
  const timer = setInterval(() => void watch(), WATCH_MS).unref()

  const usedMib = () => [...vmms.values()].reduce((sum, one) => sum + one.mib, 0)

  async function watch(): Promise<void> {
    if (isMemoryShort()) return dropAll()
    for (const [memory, { since }] of vmms) if (Date.now() - since > STANDBY_MS) await drop(memory)
  }

  async function drop(memory: string): Promise<void> {
    const found = vmms.get(memory)
    if (!found) return
    vmms.delete(memory)
    await stop(found.vmm)
  }

  async function dropAll(): Promise<void> {
    await Promise.all([...vmms.keys()].map(drop))
  }

  const stop = (vmm: Vmm) =>
    stopVmm(getDeps(), vmm.record, vmm).catch((error) =>
      getDeps().log.error({ err: error, vmm: vmm.record.id }, 'failed to stop the VMM of a paused sandbox'),
    )

  return {
    get size(): number {
      return vmms.size
    },

    /** Puts a VMM on standby, or stops it. Settles when either is done. */
    async add(memory: string, vmm: Vmm, vm: PausedVm): Promise<void> {
      const mib = VMM_MIB + Math.ceil(vm.dirtyBytes / 1024 / 1024)
      if (closed || mib > budgetMib || isMemoryShort()) return stop(vmm)
      try {
        await withTimeout(FREEZE_LIMIT_MS, freezeForStandby(getDeps(), vmm, vm), 'to freeze its disk')
      } catch (error) {
        getDeps().log.warn({ err: error, sandbox: vm.sandbox }, 'failed to put a paused sandbox on standby')
        return stop(vmm)
      }
      getDeps().log.debug({ sandbox: vm.sandbox, vmm: vmm.record.id }, 'on standby')
      setSpare(vmm, true)
      vmms.set(memory, { vmm, ip: vm.ip, mib, since: Date.now() })
      void vmm.qmp.closed.then(() => drop(memory))
      for (const oldest of [...vmms.keys()]) if (usedMib() > budgetMib) await drop(oldest)
    },

    /** The VMM with exactly this memory and address, if it is still on standby. It belongs to the caller from then on. */
    take(memory: string, ip: string): Vmm | undefined {
      const found = vmms.get(memory)
      if (!found) return undefined
      if (found.ip !== ip) {
        void drop(memory) // The sandbox has another address now.
        return undefined
      }
      vmms.delete(memory)
      found.vmm.stopping = false
      setSpare(found.vmm, false)
      return found.vmm
    },

    drop,

    async close(): Promise<void> {
      closed = true
      clearInterval(timer)
      await dropAll()
    },
  }
}
