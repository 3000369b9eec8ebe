/** A bound on what one sandbox, and all together, may have under way: one guest cannot use up what serves the others. */
export class Shares {
  readonly #perSource: number
  readonly #total: number
  readonly #held = new Map<string, number>()
  #all = 0

  constructor(limits: { perSource: number; total: number }) {
    this.#perSource = limits.perSource
    this.#total = limits.total
  }

  /** The way to give it back; undefined when the bound is reached. */
  take(source: string): (() => void) | undefined {
    const held = this.#held.get(source) ?? 0
    if (held >= this.#perSource || this.#all >= this.#total) return undefined
    this.#held.set(source, held + 1)
    this.#all++
    let isHeld = true
    return () => {
      if (!isHeld) return
      isHeld = false
      this.#all--
      const left = this.#held.get(source)! - 1 // held by us until now
      if (left === 0) this.#held.delete(source)
      else this.#held.set(source, left)
    }
  }
}
