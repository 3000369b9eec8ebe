/**
 * What one guest, and all guests together, can occupy. Some sandboxes can use up what is there for all; the others then still get
 * their reserved share, so that they become slow and do not stop.
 */
import { slowDown } from './error.ts'
import type { Mount } from './mounts.ts'

/** docs/disk-protocol.md#connection promises the first and the second. */
export const LIMITS = {
  requestsPerMount: 16,
  connectionsPerSandbox: 64,
  requestsPerSandbox: 64,
  /** Beyond it, only sandboxes with fewer than the reserved ones. The number of sandboxes limits these. */
  requests: 512,
  requestsReserved: 8,
  connections: 4_096,
  /** Bodies of small uploads and answers that are parsed, until the answer is sent. Everything else is streamed. */
  bufferedBytes: 128 * 1024 ** 2,
  bufferedBytesPerSandbox: 16 * 1024 ** 2,
  /** Enough for a listing. */
  bufferedBytesReserved: 4 * 1024 ** 2,
  /** With the reserved ones. */
  bufferedBytesMax: 256 * 1024 ** 2,
  /** Uploads up to this length are received before they are sent, so that they can be sent again. */
  smallUploadBytes: 128 * 1024,
  /** A listing of 1000 keys of 1024 bytes, percent-encoded. */
  listingBytes: 4 * 1024 ** 2,
  /** Other answers that are parsed. */
  answerBytes: 64 * 1024,
}

export const DEADLINES = {
  /** Until the head of a request has arrived. */
  headMs: 20_000,
  connectMs: 10_000,
  /** Until the head of an answer has arrived. */
  answerMs: 30_000,
  /** The same for copies and completions, for which servers may have to copy gigabytes. */
  slowAnswerMs: 300_000,
  /** A transfer must make progress in this time. */
  stallMs: 30_000,
  /** A connection of a guest without requests. */
  idleMs: 60_000,
  /** After the start, in which sandboxes may connect whose mounts have not arrived yet. */
  recoveryMs: 30_000,
}
export type Deadlines = typeof DEADLINES

/** Counts by name, with a limit for each. */
class Counters {
  readonly #counts = new Map<string, number>()
  readonly #max: number

  constructor(max: number) {
    this.#max = max
  }

  get(name: string): number {
    return this.#counts.get(name) ?? 0
  }

  tryAdd(name: string, amount = 1): boolean {
    const count = this.get(name) + amount
    if (count > this.#max) return false
    this.#counts.set(name, count)
    return true
  }

  remove(name: string, amount = 1): void {
    const count = this.get(name) - amount
    if (count <= 0) this.#counts.delete(name)
    else this.#counts.set(name, count)
  }
}

export class Occupancy {
  readonly #mounts = new Counters(LIMITS.requestsPerMount)
  readonly #sandboxes = new Counters(LIMITS.requestsPerSandbox)
  readonly #connections = new Counters(LIMITS.connectionsPerSandbox)
  readonly #sandboxBytes = new Counters(LIMITS.bufferedBytesPerSandbox)
  #bufferedBytes = 0
  requests = 0
  connections = 0

  /** Returns the function that ends the request. */
  enterRequest({ id, sandboxIp }: Mount): () => void {
    if (this.requests >= LIMITS.requests && this.#sandboxes.get(sandboxIp) >= LIMITS.requestsReserved)
      throw slowDown('the proxy serves too many requests')
    if (!this.#mounts.tryAdd(id)) throw slowDown(`more than ${LIMITS.requestsPerMount} requests of one mount at a time`)
    if (!this.#sandboxes.tryAdd(sandboxIp)) {
      this.#mounts.remove(id)
      throw slowDown(`more than ${LIMITS.requestsPerSandbox} requests of one sandbox at a time`)
    }
    this.requests++
    return once(() => {
      this.requests--
      this.#mounts.remove(id)
      this.#sandboxes.remove(sandboxIp)
    })
  }

  /** Undefined if there are too many. */
  enterConnection(ip: string): (() => void) | undefined {
    if (this.connections >= LIMITS.connections || !this.#connections.tryAdd(ip)) return undefined
    this.connections++
    return once(() => {
      this.connections--
      this.#connections.remove(ip)
    })
  }

  /** Returns the function that frees them. */
  reserveBytes({ sandboxIp }: Mount, bytes: number): () => void {
    const isReserved = this.#sandboxBytes.get(sandboxIp) + bytes <= LIMITS.bufferedBytesReserved
    const isFull = this.#bufferedBytes + bytes > (isReserved ? LIMITS.bufferedBytesMax : LIMITS.bufferedBytes)
    if (isFull || !this.#sandboxBytes.tryAdd(sandboxIp, bytes))
      throw slowDown('too many requests need memory of the proxy')
    this.#bufferedBytes += bytes
    return once(() => {
      this.#bufferedBytes -= bytes
      this.#sandboxBytes.remove(sandboxIp, bytes)
    })
  }
}

function once(run: () => void): () => void {
  let isDone = false
  return () => {
    if (!isDone) run()
    isDone = true
  }
}
