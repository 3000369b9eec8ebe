/**
 * Measures all running sandboxes at every tick, which is every ten seconds, and answers requests for their metrics.
 *
 * At a tick, in this order:
 *
 *   1. The network counters of all sandboxes are taken from the last read of the bandwidth accounting, or read.
 *   2. CPU time and resident memory of each VMM are read from the kernel, and compared with those of the tick before. A
 *      sandbox that has none of the tick before gets no sample: there is nothing to compare with.
 *   3. Guests that are to be asked for their memory and storage are asked, all at once. Samples of the others are written.
 *   4. The sample of a guest that was asked is written when it has answered, or when its time is up, with zeros then.
 *
 * A guest is asked only where it is worth waking it: at the first tick after its VMM started, while it is busy, and, at every
 * second tick, while a client has asked for its metrics within the last ten minutes. Otherwise its sample repeats what it
 * said last: a guest that does nothing changes nothing. What the guest says is not trusted: it is limited to the size of its VM.
 */
import { setImmediate as afterOthers, setTimeout as delay } from 'node:timers/promises'
import type { Log } from '@warren/kit/log'
import type { HostVmMetrics, HostVmSeries } from '@warren/protocol'
import { averageCores, type Reading, readingsToKeep } from './readings.ts'
import type { Rings } from './rings.ts'
import { renderPoint, type Sample, STEP_MS, type Tick } from './sample.ts'

/** A running sandbox. */
export type SampledVm = {
  id: string
  /** Counters of two VMMs of a sandbox cannot be compared. */
  vmmId: string
  slot: number
  memMib: number
  diskMib: number
}
export type NetworkCounts = { atMs: number; sentBytes: number; receivedBytes: number }
export type GuestReading = { memoryUsedBytes: number; storageUsedBytes: number }

export type Sources<Vm extends SampledVm> = {
  listVms(): Vm[]
  findVm(id: string): Vm | undefined
  readCpuNs(vm: Vm): number
  /** Undefined if the VMM has exited. */
  findResidentBytes(vm: Vm): number | undefined
  /** By slot. */
  readNetwork(slots: number[]): Promise<Map<number, NetworkCounts>>
  askGuest(vm: Vm): Promise<GuestReading>
  rings: Rings
  log: Pick<Log, 'warn' | 'debug'>
  /** Milliseconds since 1970. */
  now(): number
  /** Milliseconds of a clock that is never set. */
  monotonicMs(): number
}

/** Below this, in cores, a guest is idle. An idle emulated guest uses 0.01 to 0.02 for its timers. */
const IDLE_CORES = 0.05
/** How long a client's request for metrics keeps a guest being asked. */
const INTEREST_MS = 10 * 60_000
/** An idle guest is asked at every second tick: asking a hundred of them at each would cost the host 1 % of a core. */
const IDLE_PAUSE_MS = 15_000
/** Rates over less than this are noise. */
const INTERVAL_MIN_MS = 1_000
/** A timer may fire a moment early. */
const EARLY_MS = 100
/** So many VMMs are measured before other work of this process gets its turn. */
const BATCH = 50
const MIB = 1024 * 1024

/** What is remembered of a VMM between ticks. */
type Watched = {
  vmmId: string
  readings: Reading[]
  network?: NetworkCounts
  guest?: GuestReading
  /** When the guest was asked last. */
  askedAtMs?: number
}

export class Sampler<Vm extends SampledVm = SampledVm> {
  readonly #sources: Sources<Vm>
  readonly #watched = new Map<string, Watched>()
  /** When a client last asked, by sandbox. Kept across pauses. */
  readonly #interest = new Map<string, number>()
  #failedWrites = false

  constructor(sources: Sources<Vm>) {
    this.#sources = sources
  }

  /** Until `stopping` is aborted. Never rejects. */
  async run(stopping: AbortSignal): Promise<void> {
    while (!stopping.aborted) {
      const now = this.#sources.now()
      const next = Math.floor((now + EARLY_MS) / STEP_MS) + 1
      await delay(next * STEP_MS - now, undefined, { signal: stopping, ref: false }).catch(() => {}) // Checked next.
      if (stopping.aborted) return
      await this.sample().catch((error) => this.#sources.log.warn({ err: error }, 'failed to sample the sandboxes'))
    }
  }

  /** Measures every running sandbox once. */
  async sample(): Promise<void> {
    const { listVms, readNetwork, log, now } = this.#sources
    const tick = Math.floor((now() + EARLY_MS) / STEP_MS)
    const vms = listVms()
    this.#forgetOthers(vms)
    const network = await readNetwork(vms.map(({ slot }) => slot)).catch((error) => {
      log.debug({ err: error }, 'the network counters are left out of the samples')
      return new Map<number, NetworkCounts>()
    })
    const asked: Promise<void>[] = []
    for (const [i, vm] of vms.entries()) {
      if (i % BATCH === BATCH - 1) await afterOthers()
      const waiting = this.#sampleVm(tick, vm, network.get(vm.slot))
      if (waiting) asked.push(waiting)
    }
    await Promise.all(asked)
  }

  /** Of a running sandbox, now. */
  measure(vm: Vm): HostVmMetrics {
    this.#interest.set(vm.id, this.#sources.monotonicMs())
    const at = new Date(this.#sources.now()).toISOString()
    const reading = this.#read(vm)
    if (!reading) return { at, cpu_cores_used: 0, memory_bytes: 0 }
    const watched = this.#watch(vm)
    const cores = averageCores(watched.readings, reading) ?? this.#findStoredCores(vm.id) ?? 0
    if (watched.readings.length === 0) watched.readings.push(reading)
    return { at, cpu_cores_used: cores, memory_bytes: reading.residentBytes }
  }

  /** Of a sandbox in any state. */
  getSeries(id: string): HostVmSeries {
    this.#interest.set(id, this.#sources.monotonicMs())
    const stored = this.#sources.rings.list(id, this.#currentTick())
    return { points: stored.map(({ tick, sample }) => renderPoint(tick, sample)) }
  }

  /** The promise is there if the guest is asked first. */
  #sampleVm(tick: Tick, vm: Vm, network: NetworkCounts | undefined): Promise<void> | undefined {
    const reading = this.#read(vm)
    if (!reading) return undefined
    const watched = this.#watch(vm)
    const previous = watched.readings.at(-1)
    const hostPart = previous && renderHostPart(vm, { previous, reading }, { previous: watched.network, network })
    watched.readings = readingsToKeep([...watched.readings, reading])
    if (network) watched.network = network
    if (!this.#isGuestWanted(vm.id, watched, hostPart)) {
      if (hostPart) this.#write(vm.id, tick, withGuest(hostPart, watched.guest))
      return undefined
    }
    watched.askedAtMs = this.#sources.monotonicMs()
    return this.#askGuest(vm, watched).then(() => {
      if (hostPart && this.#sources.findVm(vm.id)?.vmmId === vm.vmmId) {
        this.#write(vm.id, tick, withGuest(hostPart, watched.guest))
      }
    })
  }

  #isGuestWanted(id: string, { askedAtMs }: Watched, hostPart: Sample | undefined): boolean {
    if (askedAtMs === undefined || (hostPart && hostPart.cpu_cores_used >= IDLE_CORES)) return true
    const nowMs = this.#sources.monotonicMs()
    const interestMs = this.#interest.get(id)
    return interestMs !== undefined && nowMs - interestMs < INTEREST_MS && nowMs - askedAtMs >= IDLE_PAUSE_MS
  }

  async #askGuest(vm: Vm, watched: Watched): Promise<void> {
    try {
      const { memoryUsedBytes, storageUsedBytes } = await this.#sources.askGuest(vm)
      watched.guest = {
        memoryUsedBytes: limit(memoryUsedBytes, vm.memMib * MIB),
        storageUsedBytes: limit(storageUsedBytes, vm.diskMib * MIB),
      }
    } catch (error) {
      delete watched.guest
      this.#sources.log.debug({ err: error, sandbox: vm.id }, 'the guest did not say what it uses')
    }
  }

  /** Undefined if the VMM is gone: its exit is handled elsewhere. */
  #read(vm: Vm): Reading | undefined {
    try {
      const residentBytes = this.#sources.findResidentBytes(vm)
      if (residentBytes === undefined) return undefined
      return { atMs: this.#sources.monotonicMs(), cpuNs: this.#sources.readCpuNs(vm), residentBytes }
    } catch {
      return undefined // The cgroup is removed right after the process has exited.
    }
  }

  #watch({ id, vmmId }: Vm): Watched {
    const found = this.#watched.get(id)
    if (found?.vmmId === vmmId) return found
    const watched: Watched = { vmmId, readings: [] }
    this.#watched.set(id, watched)
    return watched
  }

  #forgetOthers(vms: Vm[]): void {
    const running = new Set(vms.map(({ id }) => id))
    for (const id of this.#watched.keys()) if (!running.has(id)) this.#watched.delete(id)
    const oldest = this.#sources.monotonicMs() - INTEREST_MS
    for (const [id, at] of this.#interest) if (at < oldest) this.#interest.delete(id)
  }

  /** A full disk must not fill the log too. */
  #write(id: string, tick: Tick, sample: Sample): void {
    try {
      this.#sources.rings.write(id, tick, sample)
      this.#failedWrites = false
    } catch (error) {
      if (!this.#failedWrites) this.#sources.log.warn({ err: error, sandbox: id }, 'failed to write a metrics sample')
      this.#failedWrites = true
    }
  }

  /** For a host agent that has just started: what the one before it has measured last. */
  #findStoredCores(id: string): number | undefined {
    const recent = this.#sources.rings.list(id, this.#currentTick()).slice(-2)
    const current = recent
      .filter(({ tick }) => tick > this.#currentTick() - 3)
      .map(({ sample }) => sample.cpu_cores_used)
    return current.length === 0 ? undefined : current.reduce((sum, cores) => sum + cores, 0) / current.length
  }

  #currentTick = (): Tick => Math.floor((this.#sources.now() + EARLY_MS) / STEP_MS)
}

type Pair<T> = { previous: T; reading: T }

/** Undefined if the interval is too short. */
function renderHostPart(
  vm: SampledVm,
  { previous, reading }: Pair<Reading>,
  counts: { previous: NetworkCounts | undefined; network: NetworkCounts | undefined },
): Sample | undefined {
  const elapsedMs = reading.atMs - previous.atMs
  if (elapsedMs < INTERVAL_MIN_MS) return undefined
  const netMs = counts.network && counts.previous ? counts.network.atMs - counts.previous.atMs : 0
  const perSecond = (field: 'sentBytes' | 'receivedBytes') =>
    netMs < INTERVAL_MIN_MS ? 0 : Math.max(0, (counts.network![field] - counts.previous![field]) / (netMs / 1_000))
  return {
    cpu_cores_used: averageCores([previous], reading) ?? 0,
    memory_bytes: reading.residentBytes,
    memory_used_guest_bytes: 0,
    memory_limit_bytes: vm.memMib * MIB,
    net_bytes_in_per_sec: perSecond('receivedBytes'),
    net_bytes_out_per_sec: perSecond('sentBytes'),
    storage_bytes: 0,
    storage_limit_bytes: vm.diskMib * MIB,
  }
}

const withGuest = (hostPart: Sample, guest: GuestReading | undefined): Sample => ({
  ...hostPart,
  memory_used_guest_bytes: guest?.memoryUsedBytes ?? 0,
  storage_bytes: guest?.storageUsedBytes ?? 0,
})

/** The guest may send any integer. */
const limit = (bytes: number, max: number): number => Math.min(Math.max(bytes, 0), max)
