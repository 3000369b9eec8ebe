/**
 * A part that is kept running: when it ends by itself another is started, ever more slowly while that fails. A stop
 * also ends a start that is under way, so nothing that was begun outlives us.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { complain, say } from './say.ts'

export type Part = {
  /** Settles when it has ended, with how if that is known. */
  exited: Promise<string | undefined>
  stop(): Promise<void>
}

const RETRY_MIN_MS = 500
const RETRY_MAX_MS = 10_000

export class Kept<P extends Part> {
  readonly #name: string
  readonly #start: (before: P | undefined, signal: AbortSignal) => Promise<P>
  readonly #stopping = new AbortController()
  #current: P | undefined
  #work: Promise<unknown> | undefined

  /** `start` gets the one before, if there was one. It must leave nothing behind when it fails or is aborted. */
  constructor(name: string, start: (before: P | undefined, signal: AbortSignal) => Promise<P>) {
    this.#name = name
    this.#start = start
  }

  async start(): Promise<P> {
    const first = this.#startOne()
    this.#work = first
    const part = await first
    this.#work = this.#keep(part)
    return part
  }

  async stop(): Promise<void> {
    this.#stopping.abort()
    await this.#current?.stop()
    await this.#work?.catch(() => {}) // A start that was aborted; whoever asked for it knows.
  }

  async #keep(part: P): Promise<void> {
    for (let current: P | undefined = part; current !== undefined; current = await this.#startAgain()) {
      const how = await current.exited
      if (this.#stopping.signal.aborted) return
      say(`${this.#name} ended${how === undefined ? '' : ` (${how})`}, starting it again`)
    }
  }

  async #startAgain(): Promise<P | undefined> {
    for (let waitMs = RETRY_MIN_MS; !this.#stopping.signal.aborted; waitMs = Math.min(waitMs * 2, RETRY_MAX_MS)) {
      try {
        return await this.#startOne()
      } catch (error) {
        if (this.#stopping.signal.aborted) return undefined
        complain(`${this.#name} does not start, trying again in ${waitMs / 1000} s`, error)
        await delay(waitMs, undefined, { signal: this.#stopping.signal }).catch(() => {})
      }
    }
    return undefined
  }

  async #startOne(): Promise<P> {
    const part = await this.#start(this.#current, this.#stopping.signal)
    this.#current = part
    if (this.#stopping.signal.aborted) {
      await part.stop()
      this.#stopping.signal.throwIfAborted()
    }
    return part
  }
}
