/**
 * Slots that are created ahead of time, without an address, so that creating a sandbox does not wait for one: that takes
 * about 2 ms, and far longer under load. The pool is filled in the background, one slot at a time; a caller that finds it
 * empty waits for a new slot. Slots are created with the rules that most sandboxes start with, so that assigning one only
 * adds an address.
 */
import type { Log } from '@warren/kit/log'
import { SLOT_MAX } from './names.ts'
import type { Netd } from './netd-client.ts'
import type { SlotSettings } from './netd-protocol.ts'
import type { Policy } from './policy.ts'

export type SlotPoolSettings = { size: number } & Pick<SlotSettings, 'mtu' | 'tapOwnerUid' | 'packetsPerSecond'>

/** After a slot could not be created. Callers that need one meanwhile get the error themselves. */
const RETRY_MS = 1_000
const FILL_DELAY_MS = 20

export class SlotPool {
  readonly #netd: Pick<Netd, 'request'>
  readonly #log: Pick<Log, 'warn'>
  readonly #settings: SlotPoolSettings
  /** Every number that is not free: being created, ready, in use or being released. */
  readonly #taken = new Set<number>()
  readonly #ready: number[] = []
  /** The policy that each slot was created with. */
  readonly #preparedPolicies = new Map<number, Policy>()
  /** The policy that new slots are created with. */
  expectedPolicy: Policy | undefined
  #filling: Promise<void> | undefined
  #fillTimer: NodeJS.Timeout | undefined
  readonly #stop = new AbortController()

  constructor(deps: { netd: Pick<Netd, 'request'>; log: Pick<Log, 'warn'> }, settings: SlotPoolSettings) {
    this.#netd = deps.netd
    this.#log = deps.log
    this.#settings = settings
  }

  get taken(): number[] {
    return [...this.#taken]
  }

  get readyCount(): number {
    return this.#ready.length
  }

  preparedPolicy(slot: number): Policy | undefined {
    return this.#preparedPolicies.get(slot)
  }

  /** For a slot that exists in the kernel and is in use. */
  adopt(slot: number): void {
    if (this.#taken.has(slot)) throw new Error(`slot ${slot} is already taken`)
    this.#taken.add(slot)
  }

  /** `until` settles when the pool is full for the first time, or closed. */
  start(): { until: Promise<void> } {
    return { until: this.#fill() }
  }

  async take(): Promise<number> {
    const slot = this.#ready.shift() ?? (await this.#create())
    this.#fillSoon()
    return slot
  }

  /** Call it when the program that holds the tap has exited. Safe to repeat. */
  async release(slot: number): Promise<void> {
    const { freed } = await this.#netd.request('releaseSlot', { slot })
    this.#preparedPolicies.delete(slot)
    this.#taken.delete(slot)
    if (!freed) this.#log.warn({ slot }, 'a process still holds the network namespace of a released slot')
  }

  /** Ready slots remain in the kernel until the next start reaps them. */
  async close(): Promise<void> {
    this.#stop.abort()
    clearTimeout(this.#fillTimer)
    await this.#filling
  }

  /**
   * netd handles one request at a time: the caller that just took a slot, and others that come right after it, use it
   * before it creates new slots.
   */
  #fillSoon(): void {
    if (this.#ready.length > 0) clearTimeout(this.#fillTimer)
    else if (this.#fillTimer !== undefined) return
    this.#fillTimer = setTimeout(() => {
      this.#fillTimer = undefined
      void this.#fill()
    }, FILL_DELAY_MS)
  }

  #fill(): Promise<void> {
    this.#filling ??= this.#createUntilFull().finally(() => {
      this.#filling = undefined
    })
    return this.#filling
  }

  async #createUntilFull(): Promise<void> {
    while (this.#ready.length < this.#settings.size && !this.#stop.signal.aborted) {
      try {
        this.#ready.push(await this.#create())
      } catch (error) {
        this.#log.warn({ err: error }, 'failed to create a network slot for the pool; trying again')
        await delay(RETRY_MS, this.#stop.signal)
      }
    }
  }

  async #create(): Promise<number> {
    const slot = this.#takeNumber()
    const { size: _size, ...settings } = this.#settings
    const policy = this.expectedPolicy
    try {
      await this.#netd.request('createSlot', { slot, ...settings, ...(policy && { policy }) })
      if (policy) this.#preparedPolicies.set(slot, policy)
      return slot
    } catch (error) {
      // netd may have died halfway. The number becomes free only when everything of the slot is removed.
      this.release(slot).catch((cause) => this.#log.warn({ err: cause, slot }, 'failed to release a slot'))
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
