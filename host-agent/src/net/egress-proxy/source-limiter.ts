/** Limits what one sandbox, and all of them together, may have in progress: one guest cannot exhaust what all share. */
export class SourceLimiter {
  readonly #perSource: number
  readonly #total: number
  readonly #counts = new Map<string, number>()
  #totalCount = 0

  constructor(limits: { perSource: number; total: number }) {
    this.#perSource = limits.perSource
    this.#total = limits.total
  }

  /** Returns a function that releases what was acquired; undefined when a limit is reached. */
  acquire(source: string): (() => void) | undefined {
    const count = this.#counts.get(source) ?? 0
    if (count >= this.#perSource || this.#totalCount >= this.#total) return undefined
    this.#counts.set(source, count + 1)
    this.#totalCount++
    let isHeld = true
    return () => {
      if (!isHeld) return
      isHeld = false
      this.#totalCount--
      const remaining = this.#counts.get(source)! - 1 // Set, because this caller still counts.
      if (remaining === 0) this.#counts.delete(source)
      else this.#counts.set(source, remaining)
    }
  }
}
