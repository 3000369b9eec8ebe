/**
 * Rollback of an operation with several steps. Each step adds how it is undone; when a later step fails, `run` undoes
 * them in reverse order. A rollback step that fails is logged and the next one runs. A step that is added after the
 * rollback has begun, by work that was still under way, is undone too.
 */
import type { Log } from '@warren/kit/log'

type Step = { name: string; undo: () => Promise<unknown> | unknown }

export class Undo {
  readonly #steps: Step[] = []
  #rollback: { done: Promise<void>; log: Pick<Log, 'error'> } | undefined

  add(name: string, undo: Step['undo']): void {
    this.#steps.push({ name, undo })
    if (this.#rollback) void this.run(this.#rollback.log)
  }

  /** Resolves when everything that has been added is undone. */
  run(log: Pick<Log, 'error'>): Promise<void> {
    const done = (this.#rollback?.done ?? Promise.resolve()).then(() => this.#undoSteps(log))
    this.#rollback = { done, log }
    return done
  }

  async #undoSteps(log: Pick<Log, 'error'>): Promise<void> {
    for (let step = this.#steps.pop(); step; step = this.#steps.pop()) {
      try {
        await step.undo()
      } catch (error) {
        log.error({ err: error, step: step.name }, 'rollback step failed')
      }
    }
  }
}
