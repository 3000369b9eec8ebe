/**
 * Keeps one service running. When the service ends unexpectedly, another is started, with growing pauses while that
 * fails. `stop` also aborts a start in progress, so nothing that was started outlives this process.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { print, printError } from './output.ts'

export type Service = {
  /** Resolves when the service has ended, with the reason if it is known. */
  exited: Promise<string | undefined>
  stop(): Promise<void>
}

const RETRY_MIN_MS = 500
const RETRY_MAX_MS = 10_000

export class Supervisor<S extends Service> {
  readonly #name: string
  readonly #start: (previous: S | undefined, signal: AbortSignal) => Promise<S>
  readonly #stopping = new AbortController()
  #current: S | undefined
  #work: Promise<unknown> | undefined

  /** `start` receives the previous service, if there was one. If it fails or is aborted, it must leave nothing behind. */
  constructor(name: string, start: (previous: S | undefined, signal: AbortSignal) => Promise<S>) {
    this.#name = name
    this.#start = start
  }

  /** The service that runs or ended last. */
  get current(): S | undefined {
    return this.#current
  }

  async start(): Promise<S> {
    const first = this.#startOnce()
    this.#work = first
    const service = await first
    this.#work = this.#restartWheneverItEnds(service)
    return service
  }

  async stop(): Promise<void> {
    this.#stopping.abort()
    await this.#current?.stop()
    // A start that was aborted rejects; the caller of `start` handles that.
    await this.#work?.catch(() => {})
  }

  async #restartWheneverItEnds(service: S): Promise<void> {
    for (let current: S | undefined = service; current !== undefined; current = await this.#restart()) {
      const reason = await current.exited
      if (this.#stopping.signal.aborted) return
      print(`${this.#name} ended${reason === undefined ? '' : ` (${reason})`}, starting it again`)
    }
  }

  async #restart(): Promise<S | undefined> {
    for (let waitMs = RETRY_MIN_MS; !this.#stopping.signal.aborted; waitMs = Math.min(waitMs * 2, RETRY_MAX_MS)) {
      try {
        return await this.#startOnce()
      } catch (error) {
        if (this.#stopping.signal.aborted) return undefined
        printError(`failed to restart ${this.#name}, trying again in ${waitMs / 1000} s`, error)
        await delay(waitMs, undefined, { signal: this.#stopping.signal }).catch(() => {})
      }
    }
    return undefined
  }

  async #startOnce(): Promise<S> {
    this.#stopping.signal.throwIfAborted()
    const service = await this.#start(this.#current, this.#stopping.signal)
    this.#current = service
    if (this.#stopping.signal.aborted) {
      await service.stop()
      this.#stopping.signal.throwIfAborted()
    }
    return service
  }
}
