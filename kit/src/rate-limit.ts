/**
 * Limits the requests of a caller in a sliding minute: the count of the current minute plus the share of the previous
 * one that is still inside the window. That takes two numbers per caller and is off by a few percent at worst.
 *
 * Each process counts for itself. Several copies of a service together allow several times the limit, and each
 * of them is still protected. An exact limit would cost a database write per request
 * (docs/decisions/0005-rate-limit-per-process.md).
 */
const WINDOW_MS = 60_000
/** Clients wait as long as Retry-After says, without a limit, so it stays small. */
const RETRY_AFTER_MAX_S = 5

type Count = { windowStart: number; current: number; previous: number }

export class RateLimiter {
  readonly #limit: number
  readonly #counts = new Map<string, Count>()
  #cleanedAtMs = 0

  constructor(limitPerMinute: number) {
    this.#limit = limitPerMinute
  }

  /** Counts one request. Returns undefined if it may pass, otherwise the seconds to wait. */
  take(key: string, nowMs: number): number | undefined {
    if (this.#limit === 0) return undefined
    this.#deleteIdle(nowMs)
    const count = this.#countOf(key, nowMs)
    const elapsed = (nowMs - count.windowStart) / WINDOW_MS
    const used = count.current + count.previous * (1 - elapsed)
    if (used + 1 > this.#limit) return retryAfter(used + 1 - this.#limit, count, elapsed)
    count.current++
    return undefined
  }

  /** Undoes a `take` of this minute. */
  giveBack(key: string): void {
    const count = this.#counts.get(key)
    if (count && count.current > 0) count.current--
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

  /** Keeps the map small: anonymous callers are counted by address, and there are very many addresses. */
  #deleteIdle(nowMs: number): void {
    if (nowMs - this.#cleanedAtMs < WINDOW_MS) return
    this.#cleanedAtMs = nowMs
    for (const [key, count] of this.#counts) {
      if (nowMs - count.windowStart >= 2 * WINDOW_MS) this.#counts.delete(key)
    }
  }
}

/** The time until enough of the previous minute has left the window, or the maximum if that alone does not suffice. */
function retryAfter(excess: number, count: Count, elapsed: number): number {
  const stillCounted = count.previous * (1 - elapsed)
  if (stillCounted < excess) return RETRY_AFTER_MAX_S
  const seconds = Math.ceil(((excess / count.previous) * WINDOW_MS) / 1000)
  return Math.min(Math.max(seconds, 1), RETRY_AFTER_MAX_S)
}
