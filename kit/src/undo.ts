/**
 * Rollback of an operation with several steps. Each step adds how it is undone; when a later step fails, `run` undoes
 * them in reverse order. A rollback step that fails is logged and the next one runs.
 */
import type { Log } from './log.ts'

export class Undo {
  readonly #steps: { name: string; undo: () => Promise<unknown> | unknown }[] = []

  add(name: string, undo: () => Promise<unknown> | unknown): void {
    this.#steps.push({ name, undo })
  }

  async run(log: Pick<Log, 'error'>): Promise<void> {
    for (const { name, undo } of this.#steps.splice(0).reverse()) {
      try {
        await undo()
      } catch (error) {
        log.error({ err: error, step: name }, 'rollback step failed')
      }
    }
  }
}
