/**
 * VMMs that belong to no sandbox yet: clones of bases that were started, used once and paused, so that a create only has
 * to resume one. Nearly all of the cost of a clone is paid ahead: QEMU's start and, under emulation, the translation of
 * the guest's code, which every new process repeats.
 *
 * How many of which base: as many as were requested at once lately, within a memory budget, and always a few of the
 * common shapes. The pool is filled one VMM at a time at the lowest CPU weight, so that it does not delay requests. When
 * the host runs short of memory, the whole pool is given up.
 *
 * No record names a pooled VMM: after a restart of the host agent it is removed like any other stray.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { Undo } from '@warren/kit/undo'
import type { Base } from '../bases/base.ts'
import type { Deps } from '../deps.ts'
import { runInGuest } from '../guest/run-in-guest.ts'
import { isMemoryShort } from '../memory-pressure.ts'
import { applyIdentity } from '../vmm/apply-identity.ts'
import { vmmFolderOf } from '../vmm/folders.ts'
import { stopVmm } from '../vmm/release.ts'
import { startVmm, type VmmPlan } from '../vmm/start.ts'
import { newVmmId, type Vmm } from '../vmm/vmm.ts'

/** What a pooled VMM costs beside the pages it shares with its base; measured after it was used once. */
const VMM_MIB = 64
const WARM_LIMIT_MS = 30_000
const RETRY_MS = 5_000
const WATCH_MS = 2_000
/** Creates within this time of each other count as simultaneous. */
const BURST_MS = 10_000
/** How long a burst is remembered. */
const DEMAND_MS = 10 * 60_000

/** The pooled VMMs of one base. `requests`: when creates asked for one, oldest first. */
type Line = { base: Base; vmms: Vmm[]; requests: number[]; minimum: number }

export type Pool = ReturnType<typeof createPool>

export function createPool(getDeps: () => Deps, budgetMib: number) {
  const lines = new Map<string, Line>()
  const stopped = new AbortController()
  let changed = Promise.withResolvers<void>()
  let worker: Promise<void> | undefined

  const lineOf = (base: Base): Line => {
    const line = lines.get(base.key) ?? { base, vmms: [], requests: [], minimum: 0 }
    lines.set(base.key, line)
    return line
  }
  const size = () => [...lines.values()].reduce((sum, line) => sum + line.vmms.length, 0)
  const notifyWorker = () => changed.resolve()

  async function work(): Promise<void> {
    const deps = getDeps()
    const { signal } = stopped
    while (!signal.aborted) {
      if (isMemoryShort()) await stopAll()
      await trim()
      const hasRoom = (size() + 1) * VMM_MIB <= budgetMib && !isMemoryShort()
      const line = hasRoom ? findNeediest(lines) : undefined
      if (!line) {
        await Promise.race([changed.promise, delay(WATCH_MS, undefined, { ref: false, signal }).catch(() => {})])
        changed = Promise.withResolvers<void>()
        continue
      }
      try {
        line.vmms.push(await warmOne(deps, line.base, AbortSignal.any([signal, AbortSignal.timeout(WARM_LIMIT_MS)])))
      } catch (error) {
        if (signal.aborted) return
        deps.log.warn({ err: error, base: line.base.key }, 'failed to add a VMM to the pool')
        await delay(RETRY_MS, undefined, { ref: false, signal }).catch(() => {}) // Aborted: the loop ends.
      }
    }
  }

  async function trim(): Promise<void> {
    for (const [key, line] of lines) {
      while (line.vmms.length > demandFor(line)) await stop(line.vmms.pop()!)
      if (line.vmms.length === 0 && demandFor(line) === 0) lines.delete(key)
    }
  }

  async function stopAll(): Promise<void> {
    for (const line of lines.values()) while (line.vmms.length > 0) await stop(line.vmms.pop()!)
  }

  const stop = (vmm: Vmm) => stopPooled(getDeps(), vmm)

  return {
    /** A VMM that is ready, or undefined: a create never waits for the pool. */
    take(base: Base): Vmm | undefined {
      const line = lineOf(base)
      line.requests.push(Date.now())
      notifyWorker()
      for (;;) {
        const vmm = line.vmms.shift()
        if (vmm?.stopping) continue
        if (vmm) vmm.pooled = false
        return vmm
      }
    },

    /** From now on at least this many of this base. */
    setMinimum(base: Base, minimum: number): void {
      lineOf(base).minimum = minimum
      notifyWorker()
    },

    start(): void {
      worker ??= work()
    },

    async close(): Promise<void> {
      stopped.abort()
      notifyWorker()
      await worker
      await stopAll()
    },
  }
}

/** The most requests within BURST_MS. */
export function findPeak(requests: readonly number[]): number {
  let peak = 0
  for (let from = 0, to = 0; to < requests.length; to++) {
    while (requests[to]! - requests[from]! > BURST_MS) from++
    peak = Math.max(peak, to - from + 1)
  }
  return peak
}

function demandFor(line: Line): number {
  const since = Date.now() - DEMAND_MS
  while (line.requests.length > 0 && line.requests[0]! < since) line.requests.shift()
  return Math.max(line.minimum, findPeak(line.requests))
}

/** The line that has the smallest share of its demand; undefined if all are full. */
function findNeediest(lines: ReadonlyMap<string, Line>): Line | undefined {
  let neediest: Line | undefined
  let smallest = 1
  for (const line of lines.values()) {
    const demand = demandFor(line)
    const share = line.vmms.length / Math.max(demand, 1)
    if (line.vmms.length < demand && share < smallest) [neediest, smallest] = [line, share]
  }
  return neediest
}

/** Starts a clone, does what every sandbox does first, and pauses it. */
async function warmOne(deps: Deps, base: Base, signal: AbortSignal): Promise<Vmm> {
  const undo = new Undo()
  const identity = { hostname: 'warren', envs: {}, ssh_pubkeys: [] }
  try {
    const id = newVmmId()
    const plan: VmmPlan = {
      id,
      folder: vmmFolderOf(deps, id),
      base,
      start: { from: 'base' },
      layers: [],
      diskMib: base.diskMib,
      outlivesHostAgent: true,
    }
    const vmm = await startVmm(deps, plan, undo, signal)
    await deps.cgroups.setBackground(id, true)
    await vmm.resumeCpus()
    await applyIdentity(vmm, identity, { isNew: true }, signal)
    const { session } = await vmm.channel(signal)
    for (let i = 0; i < 2; i++) await runInGuest(session, { cmd: 'true' }, signal)
    await applyIdentity(vmm, identity, { isNew: true }, signal)
    await vmm.pauseCpus()
    await deps.cgroups.setBackground(id, false)
    vmm.pooled = true
    void vmm.qmp.closed.then(() => stopExited(deps, vmm))
    return vmm
  } catch (error) {
    await undo.run(deps.log)
    throw error
  }
}

/** After QEMU exited in the pool. `stopping` makes `take` skip it. */
async function stopExited(deps: Deps, vmm: Vmm): Promise<void> {
  if (!vmm.pooled || vmm.stopping) return
  vmm.stopping = true
  await stopPooled(deps, vmm)
}

const stopPooled = (deps: Deps, vmm: Vmm): Promise<void> =>
  stopVmm(deps, vmm.record, vmm).catch((error) =>
    deps.log.error({ err: error, vmm: vmm.record.id }, 'failed to stop a pooled VMM'),
  )
