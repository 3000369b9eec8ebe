/**
 * Stops the parts of a program in the reverse order of their start.
 *
 * Code that starts something adds its stop step at the same place. A signal, a lost parent process or a failed start
 * runs all steps once, last added first. A step that fails is logged and the next one runs; a step that hangs is
 * abandoned when the time is up, so stopping always ends.
 */
import type { Log } from './log.ts'
import { withTimeout } from './timeout.ts'

type Step = { name: string; stop: () => Promise<unknown> | unknown }

export class StopStack {
  readonly #steps: Step[] = []
  #running: Promise<void> | undefined

  add(name: string, stop: Step['stop']): void {
    this.#steps.push({ name, stop })
  }

  /** Runs every step at most once, also when called again while it runs. */
  run(log: Pick<Log, 'error' | 'debug'>, limitMs: number): Promise<void> {
    this.#running ??= this.#runAll(log, limitMs)
    return this.#running
  }

  async #runAll(log: Pick<Log, 'error' | 'debug'>, limitMs: number): Promise<void> {
    const deadline = Date.now() + limitMs
    for (const step of this.#steps.reverse()) {
      const startedAt = Date.now()
      try {
        await withTimeout(Math.max(deadline - startedAt, 1), step.stop(), `stopping ${step.name}`)
        log.debug({ step: step.name, ms: Date.now() - startedAt }, 'stopped')
      } catch (error) {
        log.error({ err: error, step: step.name }, 'failed to stop cleanly')
      }
    }
  }
}

/**
 * Calls `stop` once: on Ctrl-C, SIGTERM or a closed terminal. Later signals are ignored, because npm forwards the
 * Ctrl-C that the terminal has already sent, and stopping has a time limit anyway.
 */
export function onStopSignal(stop: (signal: NodeJS.Signals) => void): void {
  let stopping = false
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    process.on(signal, () => {
      if (stopping) return
      stopping = true
      stop(signal)
    })
  }
}
