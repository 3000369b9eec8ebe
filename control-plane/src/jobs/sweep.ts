/** A sweep runs by itself every so often, takes no input, and is safe to repeat and to run in several processes. */
import type { Deps } from '../deps.ts'

export type Sweep = { name: string; everyMs: number; run(deps: Deps): Promise<void> }

export function startSweeps(deps: Deps, sweeps: readonly Sweep[]): { stop(): Promise<void> } {
  let stopped = false
  const timers = new Map<Sweep, NodeJS.Timeout>()
  const running = new Set<Promise<void>>()

  const runOnce = async (sweep: Sweep): Promise<void> => {
    try {
      await sweep.run(deps)
    } catch (error) {
      deps.log.warn({ err: error, sweep: sweep.name }, 'a sweep failed, it will run again')
    }
    if (!stopped) schedule(sweep)
  }
  const schedule = (sweep: Sweep): void => {
    const timer = setTimeout(() => {
      const work = runOnce(sweep).finally(() => running.delete(work))
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
    },
  }
}
