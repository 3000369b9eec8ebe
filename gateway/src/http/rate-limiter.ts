/**
 * A sliding limit per key (GCRA, the generic cell rate algorithm): one number per key, the time at which its bucket is
 * empty again. A full bucket lets as many requests pass at once as the limit allows per minute; after that they pass at
 * even intervals. There is no window at whose border twice the limit could pass.
 *
 * Each process counts for itself, as the control plane does (docs/decisions/0005-rate-limit-per-process.md).
 */
const WINDOW_MS = 60_000
const TOLERANCE_MS = 0.01

export type RateResult = { isAllowed: boolean; limit: number; remaining: number; retryAfterS: number; resetS: number }

export class RateLimiter {
  readonly #limit: number
  readonly #emptyAtMs = new Map<string, number>()
  #cleanedAtMs = 0

  /** 0 turns the limit off. */
  constructor(limitPerMinute: number) {
    this.#limit = limitPerMinute
  }

  take(key: string, nowMs: number): RateResult {
    const limit = this.#limit
    if (limit === 0) return { isAllowed: true, limit, remaining: 0, retryAfterS: 0, resetS: 0 }
    this.#deleteEmpty(nowMs)
    const costMs = WINDOW_MS / limit
    const fillMs = Math.max((this.#emptyAtMs.get(key) ?? 0) - nowMs, 0)
    // The tolerance is for sums of fractions, which are not exact.
    const isAllowed = fillMs + costMs <= WINDOW_MS + TOLERANCE_MS
    const filledMs = isAllowed ? fillMs + costMs : fillMs
    if (isAllowed) this.#emptyAtMs.set(key, nowMs + filledMs)
    return {
      isAllowed,
      limit,
      remaining: Math.max(Math.floor((WINDOW_MS - filledMs) / costMs + 1e-6), 0),
      retryAfterS: isAllowed ? 0 : Math.max(Math.ceil((fillMs + costMs - WINDOW_MS) / 1000), 1),
      resetS: Math.ceil(filledMs / 1000),
    }
  }

  /** Keeps the map small: there are very many addresses. */
  #deleteEmpty(nowMs: number): void {
    if (nowMs - this.#cleanedAtMs < WINDOW_MS) return
    this.#cleanedAtMs = nowMs
    for (const [key, emptyAtMs] of this.#emptyAtMs) if (emptyAtMs <= nowMs) this.#emptyAtMs.delete(key)
  }
}
