/**
 * A sweep is background work that repeats at an interval. It takes no input, is safe to repeat, and is safe to run in
 * several processes at once.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { Deps } from './deps.ts'

export type Sweep = {
  name: string
  everyMs: number
  /** Whether it also runs when the process starts. */
  atStart?: boolean
  run(deps: Deps): Promise<void>
}

/** One that waits for the control plane or a chain is left behind: whatever it writes is complete or absent. */
const STOP_LIMIT_MS = 1_500

export function startSweeps(deps: Deps, sweeps: readonly Sweep[]): { stop(): Promise<void> } {
  let stopped = false
  const timers = new Map<Sweep, NodeJS.Timeout>()
  const running = new Set<Promise<void>>()

  const schedule = (sweep: Sweep, afterMs = sweep.everyMs): void => {
    const timer = setTimeout(() => {
      const work = run(deps, sweep, () => stopped).finally(() => {
        running.delete(work)
        if (!stopped) schedule(sweep)
      })
      running.add(work)
    }, afterMs)
    timers.set(sweep, timer)
  }
  for (const sweep of sweeps) schedule(sweep, sweep.atStart ? 0 : sweep.everyMs)
  return {
    async stop() {
      stopped = true
      for (const timer of timers.values()) clearTimeout(timer)
      await Promise.race([Promise.all(running), delay(STOP_LIMIT_MS, undefined, { ref: false })])
    },
  }
}

async function run(deps: Deps, sweep: Sweep, isStopped: () => boolean): Promise<void> {
  try {
    await sweep.run(deps)
  } catch (error) {
    if (!isStopped()) deps.log.warn({ err: error, sweep: sweep.name }, 'sweep failed, it will run again')
  }
}
