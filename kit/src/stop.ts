/**
 * Stops the parts of a program in the reverse order of their start.
 *
 * Code that starts something adds its stop step at the same place. A signal, a lost parent process or a failed start
 * runs all steps once, last added first. A step that fails is logged and the next one runs. A step that is added while
 * the others run, by a start that has not noticed the stop yet, runs as well.
 *
 * The whole stop has a time limit, and every step has a part of it reserved. A step that hangs is abandoned when only
 * the reserved time of the steps after it is left, so stopping always ends and one step cannot use up the time of
 * another. The time that a step does not need is available to those after it.
 */
import type { Log } from './log.ts'
import { withTimeout } from './timeout.ts'

type Step = { name: string; stop: () => Promise<unknown> | unknown; reservedMs: number }

/** Enough for a step that only closes sockets or ends a child process that responds. */
const RESERVED_MS = 150

export class StopStack {
  readonly #steps: Step[] = []
  #running: Promise<string[]> | undefined

  /** `reservedMs`: what the steps that run before this one cannot use up. */
  add(name: string, stop: Step['stop'], reservedMs = RESERVED_MS): void {
    this.#steps.push({ name, stop, reservedMs })
  }

  /** Runs every step at most once, also when called again while it runs. Returns the names of those that failed. */
  run(log: Pick<Log, 'error' | 'debug'>, limitMs: number): Promise<string[]> {
    this.#running ??= this.#runAll(log, limitMs)
    return this.#running
  }

  async #runAll(log: Pick<Log, 'error' | 'debug'>, limitMs: number): Promise<string[]> {
    const failed: string[] = []
    const deadline = Date.now() + limitMs
    for (let step = this.#steps.pop(); step; step = this.#steps.pop()) {
      const { name, stop, reservedMs } = step
      const startedAt = Date.now()
      const laterMs = this.#steps.reduce((sum, later) => sum + later.reservedMs, 0)
      try {
        await withTimeout(Math.max(deadline - startedAt - laterMs, reservedMs), stop(), `stopping ${name}`)
        log.debug({ step: name, ms: Date.now() - startedAt }, 'stopped')
      } catch (error) {
        log.error({ err: error, step: name }, `failed to stop ${name}`)
        failed.push(name)
      }
    }
    return failed
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
