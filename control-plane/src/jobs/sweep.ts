/**
 * A sweep is background work that repeats at an interval. It takes no input, is safe to repeat, and is safe to run in
 * several processes at once.
 */
import type { Deps } from '../deps.ts'

export type Sweep = {
  name: string
  everyMs: number
  /** Run once more when the process stops, for sweeps that write what the process holds in memory. */
  runOnStop?: boolean
  run(deps: Deps): Promise<void>
}

export function startSweeps(deps: Deps, sweeps: readonly Sweep[]): { stop(): Promise<void> } {
  let stopped = false
  const timers = new Map<Sweep, NodeJS.Timeout>()
  const running = new Set<Promise<void>>()

  const run = async (sweep: Sweep): Promise<void> => {
    try {
      await sweep.run(deps)
    } catch (error) {
      deps.log.warn({ err: error, sweep: sweep.name }, 'sweep failed, it will run again')
    }
  }
  const schedule = (sweep: Sweep): void => {
    const timer = setTimeout(() => {
      const work = run(sweep).finally(() => {
        running.delete(work)
        if (!stopped) schedule(sweep)
      })
      running.add(work)
    }, sweep.everyMs)
    timers.set(sweep, timer)
  }

  for (const sweep of sweeps) schedule(sweep)
  return {
    async stop() {
      stopped = true
      for (const timer of timers.values()) clearTimeout(timer)
      await Promise.all(running)
      await Promise.all(sweeps.filter((sweep) => sweep.runOnStop).map(run))
    },
  }
}
