/**
 * Ready-made slots without an address, so that a create does not wait for one to be made: about 2 ms, and far more under
 * load. Filled in the background, one at a time; whoever finds none ready makes their own. Their rules are those that
 * most sandboxes begin with, so a claim has only to add an address to them.
 */
import type { Log } from '@warren/kit/log'
import { SLOT_MAX } from './names.ts'
import type { Netd } from './netd-client.ts'
import type { Policy } from './policy.ts'

export type SlotPoolSettings = { size: number; mtu: number; tapOwnerUid: number }

/** After a failure to make one; the claims of that time fail by themselves and say why. */
const RETRY_MS = 1_000
const FILL_DELAY_MS = 20

export class SlotPool {
  readonly #netd: Pick<Netd, 'request'>
  readonly #log: Pick<Log, 'warn'>
  readonly #settings: SlotPoolSettings
  /** Every number that is not free: being made, ready, in use, being released. */
  readonly #taken = new Set<number>()
  readonly #ready: number[] = []
  /** What each slot of ours was made with, until it is released. */
  readonly #madeWith = new Map<number, Policy>()
  /** For the next ones. */
  usual: Policy | undefined
  #filling: Promise<void> | undefined
  #soon: NodeJS.Timeout | undefined
  readonly #stop = new AbortController()

  constructor(deps: { netd: Pick<Netd, 'request'>; log: Pick<Log, 'warn'> }, settings: SlotPoolSettings) {
    this.#netd = deps.netd
    this.#log = deps.log
    this.#settings = settings
  }

  /** What reaping must leave alone: in use, ready, or on the way to either. */
  get taken(): number[] {
    return [...this.#taken]
  }

  get readyCount(): number {
    return this.#ready.length
  }

  madeWith(slot: number): Policy | undefined {
    return this.#madeWith.get(slot)
  }

  /** In the kernel already, and in use. */
  adopt(slot: number): void {
    if (this.#taken.has(slot)) throw new Error(`slot ${slot} is taken already`)
    this.#taken.add(slot)
  }

  /** Begins to fill; `until` settles when the pool is full for the first time, or closed. */
  start(): { until: Promise<void> } {
    return { until: this.#fill() }
  }

  async take(): Promise<number> {
    const slot = this.#ready.shift() ?? (await this.#create())
    this.#fillSoon()
    return slot
  }

  /** When the program that holds its tap has ended. Safe to repeat. */
  async release(slot: number): Promise<void> {
    const { freed } = await this.#netd.request('releaseSlot', { slot })
    this.#madeWith.delete(slot)
    this.#taken.delete(slot)
    if (!freed) this.#log.warn({ slot }, 'the namespace of a released slot is still held by a process')
  }

  /** Ready slots stay in the kernel for the next start's reaping. */
  async close(): Promise<void> {
    this.#stop.abort()
    clearTimeout(this.#soon)
    await this.#filling
  }

  /** netd does one thing at a time: whoever took a slot wants to use it first, and so do those who come right after. */
  #fillSoon(): void {
    if (this.#ready.length > 0) clearTimeout(this.#soon)
    else if (this.#soon !== undefined) return
    this.#soon = setTimeout(() => {
      this.#soon = undefined
      void this.#fill()
    }, FILL_DELAY_MS)
  }

  #fill(): Promise<void> {
    this.#filling ??= this.#fillUp().finally(() => {
      this.#filling = undefined
    })
    return this.#filling
  }

  async #fillUp(): Promise<void> {
    while (this.#ready.length < this.#settings.size && !this.#stop.signal.aborted) {
      try {
        this.#ready.push(await this.#create())
      } catch (error) {
        this.#log.warn({ err: error }, 'could not make a network slot ready')
        await delay(RETRY_MS, this.#stop.signal)
      }
    }
  }

  async #create(): Promise<number> {
    const slot = this.#takeNumber()
    const { mtu, tapOwnerUid } = this.#settings
    const policy = this.usual
    try {
      await this.#netd.request('createSlot', { slot, mtu, tapOwnerUid, ...(policy && { policy }) })
      if (policy) this.#madeWith.set(slot, policy)
      return slot
    } catch (error) {
      // netd may have died in the middle: only when nothing of it is left is the number free again.
      this.release(slot).catch((cause) => this.#log.warn({ err: cause, slot }, 'could not release a slot'))
      throw error
    }
  }

  #takeNumber(): number {
    for (let slot = 0; slot <= SLOT_MAX; slot++) {
      if (this.#taken.has(slot)) continue
      this.#taken.add(slot)
      return slot
    }
    throw new Error('every network slot is taken')
  }
}

/** Ends early, without an error, when the signal fires. */
function delay(ms: number, signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve()
  const { promise, resolve } = Promise.withResolvers<void>()
  const timer = setTimeout(resolve, ms)
  signal.addEventListener('abort', () => resolve(), { once: true })
  return promise.finally(() => clearTimeout(timer))
}
