/**
 * A body: what a sandbox has while it runs. A QEMU process as a user of its own, with a folder, a slot of the network,
 * a cgroup and sockets. A sandbox gets a new one with every resume; the pool holds bodies that are nobody's yet.
 *
 * A body is known by the record that names it (registry.ts). One that no record names belongs to nobody and is removed
 * at the next start, so nothing has to be written down while one is being made.
 */
import { randomBytes } from 'node:crypto'
import { rm } from 'node:fs/promises'
import path from 'node:path'
import type { Deps } from '../deps.ts'
import { type GuestChannel, openGuestChannel } from '../guest/channel.ts'
import { inWork, type Shape, STATE_FILE } from './args.ts'
import { freezeDisk, queryActiveDisk } from './disk/block-nodes.ts'
import { readLogTail, socketDirOf, socketsIn } from './launch.ts'
import { isAlive, killProcess, type ProcessHandle } from './process.ts'
import type { Qmp } from './qmp.ts'

export type VmmRecord = {
  id: string
  slot: number
  uid: number
  qemu: ProcessHandle
  /** What lies under its memory and disk, and which build of it. */
  base: string
  baseId: string
  over: 'base' | 'zeros'
  shape: Shape
  /** The type of machine it was first booted as; a newer QEMU goes on with it. */
  type: string
  /** Objects between the base's disk and its own. */
  layers: string[]
  /** The generation it goes on from; none for one that was made new, or booted from a disk. */
  from?: number
  /** The first of its disks that is not part of the generation it goes on from; 0 unless it was kept (standby.ts). */
  firstDisk?: number
  /** How often it was kept since its layers were last put in order. */
  covers?: number
  /** It is dead, and all it held has been given back, except its disk; the slot first. */
  released?: true
  slotGone?: true
}

const CHANNEL_LIMIT_MS = 5_000
const LOAD_POLL_MS = 1
const ROOM_POLL_MS = 500

export const newVmmId = (): string => randomBytes(8).toString('hex')
export const vmmFolderOf = (deps: Deps, id: string): string => path.join(deps.config.dataDir, 'bodies', id)
export const workFolderOf = (deps: Deps, id: string): string => path.join(vmmFolderOf(deps, id), 'work')

export class Vmm {
  readonly record: VmmRecord
  readonly qmp: Qmp
  readonly #sockets: { agent: string; hello: string }
  #channel: Promise<GuestChannel> | undefined
  #waiting: Promise<void> | undefined
  #still = false
  #disk: number | undefined
  /** It belongs to the pool: nobody has it yet. */
  pooled = false
  /** Set when we end it ourselves: its death is then no news. */
  ending = false

  constructor(deps: Deps, record: VmmRecord, qmp: Qmp) {
    this.record = record
    this.qmp = qmp
    this.#sockets = socketsIn(socketDirOf(deps, record.id))
    qmp.onEvent = (event) => {
      if (event === 'BLOCK_IO_ERROR') this.#waiting ??= this.#waitForRoom(deps)
    }
  }

  /** A disk of ours that is full stops the guest before its write is lost; it goes on when there is room again. */
  async #waitForRoom(deps: Deps): Promise<void> {
    deps.log.warn({ body: this.record.id }, 'a guest stands still: out of room, or its disk fails')
    try {
      do {
        await new Promise((resolve) => setTimeout(resolve, ROOM_POLL_MS))
        if ((await this.status()) === 'io-error') await this.resumeCpus()
      } while ((await this.status()) === 'io-error')
    } catch {
      // It ended; whoever watches it says so.
    }
    this.#waiting = undefined
  }

  /** The open way to its agent, opened anew when it breaks; whoever asks while it is being opened gets the same one. */
  channel(signal: AbortSignal = AbortSignal.timeout(CHANNEL_LIMIT_MS)): Promise<GuestChannel> {
    if (this.#still) return Promise.reject(new Error('the guest stands still'))
    this.#channel ??= this.#open(signal)
    return this.#channel
  }

  async #open(signal: AbortSignal): Promise<GuestChannel> {
    try {
      const channel = await openGuestChannel(this.#sockets, signal)
      const kept = this.#channel
      void channel.closed.then(() => {
        if (this.#channel === kept) this.#channel = undefined
      })
      return channel
    } catch (error) {
      this.#channel = undefined
      throw error
    }
  }

  /** Ends every request that is under way in the guest, as a caller that goes away would. None begins until it goes on. */
  async closeChannel(): Promise<void> {
    this.#still = true
    const channel = await this.#channel?.catch(() => undefined)
    channel?.close()
    await channel?.closed
    this.#channel = undefined
  }

  /** Memory, processors and disk are one instant from here on, and the disk's own tables are in its file. */
  async pauseCpus(): Promise<void> {
    await this.qmp.run('stop')
  }

  async resumeCpus(): Promise<void> {
    await this.qmp.run('cont')
    this.#still = false
  }

  /** Of a stopped body, into its folder. `live: false` always: the other way makes QEMU crash later (platform 4.2). */
  async saveDevices(): Promise<void> {
    await this.qmp.run('xen-save-devices-state', { filename: inWork(STATE_FILE), live: false })
  }

  /** From when it was started with a state that comes in. */
  async loadDevices(uri: string, signal: AbortSignal): Promise<void> {
    await this.qmp.run('migrate-incoming', { uri })
    for (;;) {
      const status = await this.status()
      if (status !== 'inmigrate') return
      signal.throwIfAborted()
      await new Promise((resolve) => setTimeout(resolve, LOAD_POLL_MS))
    }
  }

  async status(): Promise<string> {
    return (await this.qmp.run<{ status: string }>('query-status')).status
  }

  /** The number of the disk it writes to: it began with 0, and each that was frozen began the next. */
  async newestDisk(): Promise<number> {
    this.#disk ??= await queryActiveDisk(this.qmp)
    return this.#disk
  }

  /** Its disk becomes a layer that nobody writes to any more; what it writes from now on goes to the next. */
  async freezeDisk(n: number): Promise<void> {
    await freezeDisk(this.qmp, n)
    this.#disk = n + 1
  }

  close(): void {
    this.qmp.close()
    void this.#channel?.then(
      (channel) => channel.close(),
      () => {}, // There never was one.
    )
  }

  /** Settles when its QEMU is gone, with the best reason there is. A lost connection alone is not a death. */
  async untilDead(deps: Deps): Promise<string> {
    await this.qmp.closed
    for (let waited = 0; isAlive(this.record.qemu) && waited < 2_000; waited += 20) {
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
    return `its QEMU ended: ${await readLogTail(logOf(deps, this.record.id))}`
  }
}

export const logOf = (deps: Deps, id: string): string => path.join(vmmFolderOf(deps, id), 'qemu.log')

const releases = new WeakMap<VmmRecord, Promise<void>>()

/**
 * QEMU, slot with its rules, cgroup, sockets. The disk stays: of a body that died it is all there is. Once: the number
 * of its slot is somebody else's a moment later.
 */
export function releaseVmm(deps: Deps, record: VmmRecord, body?: Vmm): Promise<void> {
  if (body) body.ending = true
  if (record.released) return Promise.resolve()
  let work = releases.get(record)
  if (!work) {
    work = releaseOnce(deps, record, body)
    releases.set(record, work)
    // One that failed may be tried again.
    work.catch(() => releases.delete(record))
  }
  return work
}

async function releaseOnce(deps: Deps, record: VmmRecord, body?: Vmm): Promise<void> {
  await killProcess(record.qemu)
  body?.close()
  // The rules of a slot go after its QEMU: no packet of it can follow.
  if (!record.slotGone) await deps.network.slots.release(record.slot)
  record.slotGone = true
  await deps.cgroups.remove(record.id)
  await rm(socketDirOf(deps, record.id), { recursive: true, force: true })
  record.released = true
}

export async function stopVmm(deps: Deps, record: VmmRecord, body?: Vmm): Promise<void> {
  await releaseVmm(deps, record, body)
  await deps.snapshots.release(record.id)
  await rm(vmmFolderOf(deps, record.id), { recursive: true, force: true })
}
