/**
 * A pool of VMMs that belong to no sandbox yet: clones of bases that were started, used once and paused, so that a create
 * only has to resume one. Nearly all of the cost of a clone is paid ahead: QEMU's start and, under emulation, the
 * translation of the guest's code, which every new process repeats.
 *
 * Each base gets as many VMMs as the largest recent burst of creates needed, or its minimum if that is more, within a
 * memory budget. The pool is filled one VMM at a time at the lowest CPU weight, so that it does not delay requests. When
 * the host runs short of memory, all pooled VMMs are stopped.
 *
 * A pooled VMM has no record on disk, so a restarted host agent removes it like any other stray process (vms/adopt.ts).
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { Base } from '../bases/base.ts'
import type { Deps } from '../deps.ts'
import { runInGuest } from '../guest/run-in-guest.ts'
import { isMemoryShort } from '../memory-pressure.ts'
import { INITIAL_GUEST_ADDRESS } from '../net/names.ts'
import { Undo } from '../undo.ts'
import { applyIdentity } from '../vmm/apply-identity.ts'
import { vmmFolderOf } from '../vmm/folders.ts'
import { setSpare } from '../vmm/memory.ts'
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
type BasePool = { base: Base; vmms: Vmm[]; requests: number[]; minimum: number }

export type Pool = ReturnType<typeof createPool>

export function createPool(getDeps: () => Deps, budgetMib: number) {
  const basePools = new Map<string, BasePool>()
  const stopped = new AbortController()
  let changed = Promise.withResolvers<void>()
  let worker: Promise<void> | undefined

  const poolOf = (base: Base): BasePool => {
    const pool = basePools.get(base.key) ?? { base, vmms: [], requests: [], minimum: 0 }
    basePools.set(base.key, pool)
    return pool
  }
  const size = () => [...basePools.values()].reduce((sum, pool) => sum + pool.vmms.length, 0)
  const notifyWorker = () => changed.resolve()

  async function work(): Promise<void> {
    const deps = getDeps()
    const signal = AbortSignal.any([stopped.signal, deps.stopping])
    while (!signal.aborted) {
      if (isMemoryShort()) await stopAll()
      await trim()
      const hasRoom = (size() + 1) * VMM_MIB <= budgetMib && !isMemoryShort()
      const pool = hasRoom ? findNeediest(basePools) : undefined
      if (!pool) {
        await Promise.race([changed.promise, delay(WATCH_MS, undefined, { ref: false, signal }).catch(() => {})])
        changed = Promise.withResolvers<void>()
        continue
      }
      try {
        const limited = AbortSignal.any([signal, AbortSignal.timeout(WARM_LIMIT_MS)])
        const vmm = await warmOne(deps, pool.base, limited)
        if (basePools.get(pool.base.key) === pool) pool.vmms.push(vmm)
        else await stop(vmm) // The base was forgotten meanwhile.
      } catch (error) {
        if (signal.aborted) return
        deps.log.warn({ err: error, base: pool.base.key }, 'failed to add a VMM to the pool')
        await delay(RETRY_MS, undefined, { ref: false, signal }).catch(() => {}) // Aborted: the loop ends.
      }
    }
  }

  async function trim(): Promise<void> {
    for (const [key, pool] of basePools) {
      while (pool.vmms.length > demandFor(pool)) await stop(pool.vmms.pop()!)
      if (pool.vmms.length === 0 && demandFor(pool) === 0) basePools.delete(key)
    }
  }

  async function stopAll(): Promise<void> {
    await Promise.all([...basePools.values()].flatMap((pool) => pool.vmms.splice(0).map(stop)))
  }

  const stop = (vmm: Vmm) => stopPooled(getDeps(), vmm)

  return {
    get size(): number {
      return size()
    },

    /** A VMM that is ready, or undefined: a create never waits for the pool. */
    take(base: Base): Vmm | undefined {
      const pool = poolOf(base)
      pool.requests.push(Date.now())
      notifyWorker()
      for (;;) {
        const vmm = pool.vmms.shift()
        if (vmm?.stopping) continue
        if (vmm) {
          vmm.pooled = false
          setSpare(vmm, false)
        }
        getDeps().metrics.poolRequests.increase({ result: vmm ? 'hit' : 'miss' })
        return vmm
      }
    },

    /** The pool keeps at least this many VMMs of the base, within its budget. */
    setMinimum(base: Base, minimum: number): void {
      poolOf(base).minimum = minimum
      notifyWorker()
    },

    /** For a base that is about to be deleted. */
    async forget(key: string): Promise<void> {
      const pool = basePools.get(key)
      basePools.delete(key)
      await Promise.all((pool?.vmms.splice(0) ?? []).map(stop))
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

function demandFor(pool: BasePool): number {
  const since = Date.now() - DEMAND_MS
  while (pool.requests.length > 0 && pool.requests[0]! < since) pool.requests.shift()
  return Math.max(pool.minimum, findPeak(pool.requests))
}

/** The base that has the smallest share of its demand; undefined if all are full. */
function findNeediest(basePools: ReadonlyMap<string, BasePool>): BasePool | undefined {
  let neediest: BasePool | undefined
  let smallest = 1
  for (const pool of basePools.values()) {
    const demand = demandFor(pool)
    const share = pool.vmms.length / Math.max(demand, 1)
    if (pool.vmms.length < demand && share < smallest) [neediest, smallest] = [pool, share]
  }
  return neediest
}

/** Starts a clone, does what every sandbox does first, and pauses it. */
async function warmOne(deps: Deps, base: Base, signal: AbortSignal): Promise<Vmm> {
  const undo = new Undo()
  // With an address, so that the guest has run the code that a create runs. It has this one already, as a subnet.
  const identity = { address: INITIAL_GUEST_ADDRESS, hostname: 'warren', envs: {}, ssh_pubkeys: [] }
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
    // At the lowest CPU weight, QEMU may take long to answer.
    const stopListening = vmm.qmp.closeOnAbort(signal)
    undo.add('abort listener', stopListening)
    await deps.cgroups.setBackground(id, true)
    await vmm.resumeCpus()
    await applyIdentity(vmm, identity, { isNew: true }, signal)
    const { session } = await vmm.channel(signal)
    for (let i = 0; i < 2; i++) await runInGuest(session, { cmd: 'true' }, signal)
    await applyIdentity(vmm, identity, { isNew: true }, signal)
    await vmm.pauseCpus()
    await deps.cgroups.setBackground(id, false)
    stopListening()
    vmm.pooled = true
    setSpare(vmm, true)
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
