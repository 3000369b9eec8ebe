/**
 * Bodies that are nobody's yet: clones that were restored, woken, used once and stopped, so that a create only lets
 * one go. Nearly all of what a fresh clone costs is paid ahead: QEMU's start, and under emulation the translation of
 * the guest's code, which every new process does anew (platform 4.7).
 *
 * How many of which base: as many as were asked for at once lately, within a budget of memory; of the bases people
 * start with always a few. Filled one at a time at the lowest weight, so that work somebody waits for comes first. When
 * the machine runs short of memory all of it is given back.
 *
 * No record names a pooled body: after a restart of the host agent it is a stray like any other, and is removed.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { Undo } from '@warren/kit/undo'
import type { Base } from '../bases/base.ts'
import type { Deps } from '../deps.ts'
import { runInGuest } from '../guest/run-in-guest.ts'
import { shortOfMemory } from '../memory-pressure.ts'
import { applyIdentity } from '../vmm/apply-identity.ts'
import { startVmm } from '../vmm/start.ts'
import { newVmmId, stopVmm, type Vmm, vmmFolderOf } from '../vmm/vmm.ts'

/** What one costs beside the pages it shares with its base; measured after it was woken and used. */
const BODY_MIB = 64
const WARM_LIMIT_MS = 30_000
const RETRY_MS = 5_000
const WATCH_MS = 2_000
/** Creates that come within this time of each other come at once. */
const BURST_MS = 10_000
const REMEMBERED_MS = 10 * 60_000

type Line = { base: Base; bodies: Vmm[]; asked: number[]; atLeast: number }

export type Pool = ReturnType<typeof createPool>

export function createPool(getDeps: () => Deps, budgetMib: number) {
  const lines = new Map<string, Line>()
  const stop = new AbortController()
  let wake = Promise.withResolvers<void>()
  let worker: Promise<void> | undefined

  const lineOf = (base: Base): Line => {
    const line = lines.get(base.key) ?? { base, bodies: [], asked: [], atLeast: 0 }
    lines.set(base.key, line)
    return line
  }
  const size = () => [...lines.values()].reduce((sum, line) => sum + line.bodies.length, 0)
  const nudge = () => wake.resolve()

  async function work(): Promise<void> {
    const deps = getDeps()
    const { signal } = stop
    while (!signal.aborted) {
      if (shortOfMemory()) await drain()
      await trim()
      const line = size() * BODY_MIB + BODY_MIB <= budgetMib && !shortOfMemory() ? mostWanted(lines) : undefined
      if (!line) {
        await Promise.race([wake.promise, delay(WATCH_MS, undefined, { ref: false, signal }).catch(() => {})])
        wake = Promise.withResolvers<void>()
        continue
      }
      try {
        line.bodies.push(await warmOne(deps, line.base, AbortSignal.any([signal, AbortSignal.timeout(WARM_LIMIT_MS)])))
      } catch (error) {
        if (signal.aborted) return
        deps.log.warn({ err: error, base: line.base.key }, 'could not warm a body')
        await delay(RETRY_MS, undefined, { ref: false, signal }).catch(() => {}) // Stopping, seen above.
      }
    }
  }

  async function trim(): Promise<void> {
    for (const [key, line] of lines) {
      while (line.bodies.length > wanted(line)) await end(line.bodies.pop()!)
      if (line.bodies.length === 0 && wanted(line) === 0) lines.delete(key)
    }
  }

  async function drain(): Promise<void> {
    for (const line of lines.values()) while (line.bodies.length > 0) await end(line.bodies.pop()!)
  }

  const end = (body: Vmm) =>
    stopVmm(getDeps(), body.record, body).catch((error) => getDeps().log.error({ err: error }, 'a body would not end'))

  return {
    /** One that is ready, or nothing: nobody waits for the pool. */
    take(base: Base): Vmm | undefined {
      const line = lineOf(base)
      line.asked.push(Date.now())
      nudge()
      for (;;) {
        const body = line.bodies.shift()
        if (body?.ending) continue
        if (body) body.pooled = false
        return body
      }
    },
    /** Always a few of this one. */
    keep(base: Base, atLeast: number): void {
      lineOf(base).atLeast = atLeast
      nudge()
    },
    /** How many stand ready, for whoever waits for it. */
    size,
    start(): void {
      worker ??= work()
    },
    async close(): Promise<void> {
      stop.abort()
      nudge()
      await worker
      await drain()
    },
  }
}

/** As many as were asked for within BURST_MS at the worst moment of the last minutes. */
export function peakOf(asked: readonly number[]): number {
  let peak = 0
  for (let from = 0, to = 0; to < asked.length; to++) {
    while (asked[to]! - asked[from]! > BURST_MS) from++
    peak = Math.max(peak, to - from + 1)
  }
  return peak
}

function wanted(line: Line): number {
  const since = Date.now() - REMEMBERED_MS
  while (line.asked.length > 0 && line.asked[0]! < since) line.asked.shift()
  return Math.max(line.atLeast, peakOf(line.asked))
}

/** The one that has the smallest share of what it should have. */
function mostWanted(lines: ReadonlyMap<string, Line>): Line | undefined {
  let found: Line | undefined
  let share = 1
  for (const line of lines.values()) {
    const its = line.bodies.length / Math.max(wanted(line), 1)
    if (line.bodies.length < wanted(line) && its < share) [found, share] = [line, its]
  }
  return found
}

/** What every sandbox does first, done here, and then it stands still until somebody takes it. */
async function warmOne(deps: Deps, base: Base, signal: AbortSignal): Promise<Vmm> {
  const undo = new Undo()
  try {
    const id = newVmmId()
    const plan = { id, home: vmmFolderOf(deps, id), base, layers: [], diskMib: base.diskMib, lasting: true }
    const body = await startVmm(deps, plan, undo, signal)
    await deps.cgroups.setBackground(id, true)
    await body.resumeCpus()
    await applyIdentity(body, { hostname: 'warren', envs: {}, ssh_pubkeys: [] }, { born: true }, signal)
    const { session } = await body.channel(signal)
    for (let i = 0; i < 2; i++) await runInGuest(session, { cmd: 'true' }, signal)
    await applyIdentity(body, { hostname: 'warren', envs: {}, ssh_pubkeys: [] }, { born: true }, signal)
    await body.pauseCpus()
    await deps.cgroups.setBackground(id, false)
    body.pooled = true
    void body.qmp.closed.then(async () => {
      if (!body.pooled || body.ending) return
      body.ending = true // take() passes it over.
      await stopVmm(deps, body.record, body).catch((error) => deps.log.error({ err: error }, 'a body would not end'))
    })
    return body
  } catch (error) {
    await undo.run(deps.log)
    throw error
  }
}
