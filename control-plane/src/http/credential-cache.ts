/**
 * What a credential means, remembered for a short while.
 *
 * The database says `credentials_changed` when a key, user or token changes; every process then forgets all it knows.
 * While nothing can be heard nothing is remembered. A lookup that was under way when something changed is not
 * remembered either: it may have read the old state.
 */
import type { Caller } from './caller.ts'

const TTL_MS = 30_000
const MAX_ENTRIES = 10_000

type Entry = { caller: Caller; expiresAt: number }

export class CredentialCache {
  readonly #entries = new Map<string, Entry>()
  readonly #underWay = new Map<string, Promise<Caller | undefined>>()
  #epoch = 0
  #hearing = false

  /** The caller behind the credential, at once if remembered; concurrent lookups of one credential share one. */
  find(
    key: string,
    lookUp: () => Promise<{ caller: Caller | undefined; ttlMs?: number }>,
  ): Caller | Promise<Caller | undefined> {
    const entry = this.#entries.get(key)
    if (entry && entry.expiresAt > Date.now()) return entry.caller
    const epoch = this.#epoch
    const sharedKey = `${epoch} ${key}`
    let work = this.#underWay.get(sharedKey)
    if (!work) {
      work = this.#lookUp(key, epoch, lookUp).finally(() => this.#underWay.delete(sharedKey))
      this.#underWay.set(sharedKey, work)
    }
    return work
  }

  async #lookUp(
    key: string,
    epoch: number,
    lookUp: () => Promise<{ caller: Caller | undefined; ttlMs?: number }>,
  ): Promise<Caller | undefined> {
    const { caller, ttlMs = TTL_MS } = await lookUp()
    // Unknown credentials are not kept: a flood of guesses must not push out those that are used.
    if (caller && this.#hearing && this.#epoch === epoch) {
      if (this.#entries.size >= MAX_ENTRIES) this.#entries.clear()
      this.#entries.set(key, { caller, expiresAt: Date.now() + Math.min(ttlMs, TTL_MS) })
    }
    return caller
  }

  clear(): void {
    this.#epoch++
    this.#entries.clear()
  }

  hear(hearing: boolean): void {
    this.#hearing = hearing
    this.clear()
  }
}
