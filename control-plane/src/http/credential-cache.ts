/**
 * Caches which caller a credential belongs to, for a short time.
 *
 * When a key, user or token changes, the database sends `credentials_changed`, and every process clears its cache
 * (watch-credentials.ts). While this process is not connected to receive that, nothing is cached. The result of a lookup
 * during which something changed is not cached either, because it may have read the old state.
 */
import type { Caller } from './caller.ts'

const TTL_MS = 30_000
const MAX_ENTRIES = 10_000

type Entry = { caller: Caller; expiresAt: number }
type LookUp = () => Promise<{ caller: Caller | undefined; ttlMs?: number }>

export class CredentialCache {
  readonly #entries = new Map<string, Entry>()
  readonly #validKeys = new Set<string>()
  readonly #lookups = new Map<string, Promise<Caller | undefined>>()
  /** Counts the changes. A lookup belongs to the epoch in which it began. */
  #epoch = 0
  #enabled = false

  get(key: string): Caller | undefined {
    const entry = this.#entries.get(key)
    return entry && entry.expiresAt > Date.now() ? entry.caller : undefined
  }

  /** Returns the caller immediately if it is cached. Concurrent lookups of one credential share one query. */
  find(key: string, lookUp: LookUp): Caller | Promise<Caller | undefined> {
    const cached = this.get(key)
    if (cached) return cached
    const epoch = this.#epoch
    const sharedKey = `${epoch} ${key}`
    let lookup = this.#lookups.get(sharedKey)
    if (!lookup) {
      lookup = this.#lookUp(key, epoch, lookUp).finally(() => this.#lookups.delete(sharedKey))
      this.#lookups.set(sharedKey, lookup)
    }
    return lookup
  }

  async #lookUp(key: string, epoch: number, lookUp: LookUp): Promise<Caller | undefined> {
    const { caller, ttlMs = TTL_MS } = await lookUp()
    // Unknown credentials are not cached: a flood of guesses must not evict those in use.
    if (caller && this.#enabled && this.#epoch === epoch) {
      if (this.#entries.size >= MAX_ENTRIES) this.#entries.clear()
      this.#entries.set(key, { caller, expiresAt: Date.now() + Math.min(ttlMs, TTL_MS) })
    }
    return caller
  }

  /**
   * True if the credential was valid some time ago, also if it is no longer cached. It must still be looked up, but it is
   * not a guess.
   */
  wasValid(key: string): boolean {
    return this.#validKeys.has(key)
  }

  rememberValid(key: string): void {
    if (this.#validKeys.size >= MAX_ENTRIES) this.#validKeys.clear()
    this.#validKeys.add(key)
  }

  clear(): void {
    this.#epoch++
    this.#entries.clear()
  }

  /** True while this process receives `credentials_changed`. */
  setEnabled(enabled: boolean): void {
    this.#enabled = enabled
    this.clear()
  }
}
