/**
 * Every step names its way back. If a later step fails, the ways back are gone last first; one that fails itself is
 * reported and does not keep the others from running.
 */
import type { Log } from './log.ts'

export class Undo {
  readonly #steps: { name: string; back: () => Promise<unknown> | unknown }[] = []

  add(name: string, back: () => Promise<unknown> | unknown): void {
    this.#steps.push({ name, back })
  }

  async run(log: Pick<Log, 'error'>): Promise<void> {
    for (const { name, back } of this.#steps.splice(0).reverse()) {
      try {
        await back()
      } catch (error) {
        log.error({ err: error, step: name }, 'could not take a step back')
      }
    }
  }
}
