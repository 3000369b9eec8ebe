/** Spreads what a source asks for over time: each turn is a moment later than the one before, and unused time adds up. */
export class SourceRate {
  readonly #intervalMs: number
  readonly #burstMs: number
  /** When the next turn of each source is due. Sources whose time has passed are forgotten. */
  readonly #nextAt = new Map<string, number>()

  constructor(perSecond: number, burst: number) {
    this.#intervalMs = 1_000 / perSecond
    this.#burstMs = burst * this.#intervalMs
  }

  /** The time in milliseconds that the source has to wait for this turn. */
  take(source: string, now = performance.now()): number {
    const nextAt = Math.max(this.#nextAt.get(source) ?? 0, now - this.#burstMs)
    if (this.#nextAt.size > SOURCES_MAX) this.#forget(now)
    this.#nextAt.set(source, nextAt + this.#intervalMs)
    return Math.max(nextAt - now, 0)
  }

  #forget(now: number): void {
    for (const [source, nextAt] of this.#nextAt) if (nextAt < now - this.#burstMs) this.#nextAt.delete(source)
  }
}

const SOURCES_MAX = 4_096
