/**
 * A VMM: the QEMU process of a sandbox while it runs, with the connection to its monitor and the channel to its guest
 * agent. It has a private user id, a folder, a network slot, a cgroup and sockets. A sandbox gets a new VMM with every
 * resume from disk; the pool holds VMMs that belong to no sandbox yet.
 *
 * A VMM is found again through the sandbox's record (vms/record.ts). One that no record names is removed when the host
 * agent starts, so nothing is written to disk while a VMM is being started.
 */
import { randomBytes } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { abortable } from '@warren/kit/abortable'
import { span } from '@warren/kit/span'
import { withTimeout } from '@warren/kit/timeout'
import type { Deps } from '../deps.ts'
import { type GuestChannel, openGuestChannel } from '../guest/channel.ts'
import { inWork, STATE_FILE } from './args.ts'
import { guestSocketsIn, logFileOf, socketFolderOf } from './folders.ts'
import { readLogTail } from './log.ts'
import { explainKill } from './memory.ts'
import { isAlive } from './process.ts'
import type { Qmp } from './qmp.ts'
import type { VmmRecord } from './record.ts'

const CHANNEL_LIMIT_MS = 5_000
const LOAD_POLL_MS = 1
const DISK_SPACE_POLL_MS = 500
/** The monitor's connection ends a moment before the process is gone. */
const EXIT_WAIT_MS = 2_000
const EXIT_POLL_MS = 20
/** A QEMU process that a guest has taken over may not answer. Then the kernel stops it. */
const HOLD_LIMIT_MS = 2_000

export const newVmmId = (): string => randomBytes(8).toString('hex')

export class Vmm {
  readonly record: VmmRecord
  readonly qmp: Qmp
  readonly #sockets: { agent: string; hello: string }
  #channel: Promise<GuestChannel> | undefined
  #waitingForDiskSpace: Promise<void> | undefined
  #channelClosed = false
  /** Its CPUs are paused for an operation, which resumes them. */
  #isPaused = false
  #isFrozen = false
  /** Its guest is stopped until the disk of the host has space (disk/guard.ts). */
  waitsForDisk = false
  /** It belongs to the pool and to no sandbox yet. */
  pooled = false
  /** Set when the host agent stops it, so that its exit is not reported as a death. */
  stopping = false

  constructor(deps: Deps, record: VmmRecord, qmp: Qmp) {
    this.record = record
    this.qmp = qmp
    this.#sockets = guestSocketsIn(socketFolderOf(deps, record.id))
    qmp.onEvent = (event) => {
      if (event === 'BLOCK_IO_ERROR') this.#waitingForDiskSpace ??= this.#waitForDiskSpace(deps)
    }
  }

  /** When the host's disk is full, QEMU stops the guest before a write is lost. It continues once there is space. */
  async #waitForDiskSpace(deps: Deps): Promise<void> {
    deps.log.warn({ vmm: this.record.id }, 'guest stopped by a disk error: the host disk is full or failing')
    try {
      do {
        await delay(DISK_SPACE_POLL_MS)
        // Looked at twice: a pause may begin during the question, and what it saves must not change.
        if (this.#mayContinue() && (await this.status()) === 'io-error' && this.#mayContinue()) await this.resumeCpus()
      } while ((await this.status()) === 'io-error')
    } catch {
      // QEMU exited, which is reported by vms/watch.ts.
    }
    this.#waitingForDiskSpace = undefined
  }

  /** Neither an operation nor the guard of the disk has stopped the guest. */
  #mayContinue(): boolean {
    return !this.#isPaused && !this.waitsForDisk
  }

  /** The connection to the guest agent, opened when there is none. Concurrent callers share one attempt, each for its own time. */
  channel(signal: AbortSignal = AbortSignal.timeout(CHANNEL_LIMIT_MS)): Promise<GuestChannel> {
    if (this.#channelClosed) return Promise.reject(new Error('the guest is paused'))
    this.#channel ??= this.#openChannel(signal)
    return abortable(this.#channel, signal)
  }

  async #openChannel(signal: AbortSignal): Promise<GuestChannel> {
    try {
      const channel = await span('open guest channel', () => openGuestChannel(this.#sockets, signal))
      const opened = this.#channel
      void channel.closed.then(() => {
        if (this.#channel === opened) this.#channel = undefined
      })
      return channel
    } catch (error) {
      this.#channel = undefined
      throw error
    }
  }

  /** Ends every request in the guest as if its caller had disconnected. None starts until `resumeCpus`. */
  async closeChannel(): Promise<void> {
    this.#channelClosed = true
    const channel = await this.#channel?.catch(() => undefined)
    channel?.close()
    await channel?.closed
    this.#channel = undefined
  }

  /** Afterwards memory, CPUs and disk no longer change, and the disk's metadata is in its file. */
  async pauseCpus(): Promise<void> {
    this.#isPaused = true
    this.#endHold()
    await span('pause CPUs', () => this.qmp.run('stop'))
  }

  async resumeCpus(): Promise<void> {
    this.#isPaused = false
    this.#endHold()
    await span('resume CPUs', () => this.qmp.run('cont'))
    this.#channelClosed = false
  }

  /** Of the guest's disk, since the VMM was started. */
  async countWrites(): Promise<number> {
    const devices = await withTimeout(
      HOLD_LIMIT_MS,
      this.qmp.run<{ stats: { wr_operations: number } }[]>('query-blockstats'),
      'to count writes',
    )
    return devices.reduce((sum, { stats }) => sum + stats.wr_operations, 0)
  }

  /** Stops the guest until `releaseFromDisk`. An operation that pauses or resumes the CPUs meanwhile takes over. */
  async holdForDisk(): Promise<boolean> {
    if (this.#isPaused || this.stopping || this.waitsForDisk) return false
    this.waitsForDisk = true
    try {
      await withTimeout(HOLD_LIMIT_MS, this.qmp.run('stop'), 'to stop the guest')
    } catch {
      if (this.waitsForDisk) this.#freeze()
    }
    return true
  }

  /** If it fails, the guest is still held, by the kernel. */
  async releaseFromDisk(): Promise<void> {
    if (!this.waitsForDisk) return
    this.#thaw()
    try {
      await withTimeout(HOLD_LIMIT_MS, this.qmp.run('cont'), 'to continue the guest')
      this.waitsForDisk = false
    } catch (error) {
      // QEMU could still obey later, when the disk may be full again.
      if (this.waitsForDisk) this.#freeze()
      throw error
    }
  }

  #freeze(): void {
    if (!isAlive(this.record.qemu)) return
    process.kill(this.record.qemu.pid, 'SIGSTOP')
    this.#isFrozen = true
  }

  #endHold(): void {
    this.waitsForDisk = false
    this.#thaw()
  }

  #thaw(): void {
    if (this.#isFrozen && isAlive(this.record.qemu)) process.kill(this.record.qemu.pid, 'SIGCONT')
    this.#isFrozen = false
  }

  /** Writes the device state into the work folder. `live: false` always: with `live: true` QEMU crashes later. */
  async saveDevices(): Promise<void> {
    await this.qmp.run('xen-save-devices-state', { filename: inWork(STATE_FILE), live: false })
  }

  /** For a VMM that was started to load a saved state. */
  async loadDevices(uri: string, signal: AbortSignal): Promise<void> {
    await this.qmp.run('migrate-incoming', { uri })
    for (;;) {
      const status = await this.status()
      if (status !== 'inmigrate') return
      signal.throwIfAborted()
      await delay(LOAD_POLL_MS)
    }
  }

  async status(): Promise<string> {
    return (await this.qmp.run<{ status: string }>('query-status')).status
  }

  close(): void {
    this.qmp.close()
    void this.#channel?.then(
      (channel) => channel.close(),
      () => {}, // It was never opened.
    )
  }

  /** Settles with the reason when QEMU has exited. */
  async untilExit(deps: Deps): Promise<string> {
    await this.qmp.closed
    for (let waitedMs = 0; isAlive(this.record.qemu) && waitedMs < EXIT_WAIT_MS; waitedMs += EXIT_POLL_MS) {
      await delay(EXIT_POLL_MS)
    }
    const killed = await explainKill(deps, this.record.id)
    return killed ?? `its QEMU process exited: ${await readLogTail(logFileOf(deps, this.record.id))}`
  }
}
