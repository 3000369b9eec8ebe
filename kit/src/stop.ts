/**
 * Stopping, in the reverse order of starting.
 *
 * Whoever starts something adds its stop right there. A signal, a lost parent or a failed start runs the stack once,
 * last added first. A step that fails is reported and does not keep the others from running; a step that hangs is
 * left behind when the time is up, so that a stop always ends.
 */
import type { Log } from './log.ts'

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
        await within(Math.max(deadline - startedAt, 1), step.stop(), `stopping ${step.name}`)
        log.debug({ step: step.name, ms: Date.now() - startedAt }, 'stopped')
      } catch (error) {
        log.error({ err: error, step: step.name }, 'could not stop cleanly')
      }
    }
  }
}

/** The promise, or an error that says what took too long. */
export async function within<T>(limitMs: number, work: Promise<T> | T, what: string): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} took more than ${limitMs} ms`)), limitMs)
  })
  try {
    return await Promise.race([work, late])
  } finally {
    clearTimeout(timer)
  }
}

/**
 * Calls `stop` once: on Ctrl-C, SIGTERM or a closed terminal. Signals after the first change nothing: npm repeats the
 * terminal's Ctrl-C to us, so a second one need not be impatience, and a stop ends by itself within its limit.
 */
export function onStopSignal(stop: (signal: NodeJS.Signals) => void): void {
  let asked = false
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    process.on(signal, () => {
      if (asked) return
      asked = true
      stop(signal)
    })
  }
}
