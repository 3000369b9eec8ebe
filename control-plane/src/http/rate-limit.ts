/**
 * How many requests a caller makes, in a sliding minute: the current minute's count plus the part of the previous one
 * that is still inside the window. Two numbers a caller, off by a few percent at worst.
 *
 * Counted per process. Several copies of the control plane allow several times the limit, which protects each of
 * them all the same; an exact limit would cost a database write per request (docs/decisions/0005).
 */
const WINDOW_MS = 60_000
/** Clients obey Retry-After without a cap (wire 19). */
const RETRY_AFTER_MAX_S = 5

type Count = { windowStart: number; current: number; previous: number }

export class RateLimiter {
  readonly #limit: number
  readonly #counts = new Map<string, Count>()
  #sweptAt = 0

  constructor(limitPerMinute: number) {
    this.#limit = limitPerMinute
  }

  /** Counts one request. Gives undefined if it may pass, else the seconds to wait. */
  take(key: string, nowMs: number): number | undefined {
    if (this.#limit === 0) return undefined
    this.#forgetIdle(nowMs)
    const count = this.#countOf(key, nowMs)
    const elapsed = (nowMs - count.windowStart) / WINDOW_MS
    const used = count.current + count.previous * (1 - elapsed)
    if (used + 1 > this.#limit) return retryAfter(used + 1 - this.#limit, count, elapsed)
    count.current++
    return undefined
  }

  #countOf(key: string, nowMs: number): Count {
    const windowStart = nowMs - (nowMs % WINDOW_MS)
    let count = this.#counts.get(key)
    if (!count) {
      count = { windowStart, current: 0, previous: 0 }
      this.#counts.set(key, count)
    } else if (count.windowStart !== windowStart) {
      const isNext = windowStart - count.windowStart === WINDOW_MS
      count.previous = isNext ? count.current : 0
      count.current = 0
      count.windowStart = windowStart
    }
    return count
  }

  /** Anonymous callers are addresses, of which there is no end. */
  #forgetIdle(nowMs: number): void {
    if (nowMs - this.#sweptAt < WINDOW_MS) return
    this.#sweptAt = nowMs
    for (const [key, count] of this.#counts) {
      if (nowMs - count.windowStart >= 2 * WINDOW_MS) this.#counts.delete(key)
    }
  }
}

/** Until enough of the previous minute has slid out of the window; if that never helps, the most we ask for. */
function retryAfter(excess: number, count: Count, elapsed: number): number {
  const leaves = count.previous * (1 - elapsed)
  if (leaves < excess) return RETRY_AFTER_MAX_S
  const seconds = Math.ceil(((excess / count.previous) * WINDOW_MS) / 1000)
  return Math.min(Math.max(seconds, 1), RETRY_AFTER_MAX_S)
}
