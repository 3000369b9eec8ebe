/** A VM that runs here, in memory: its record, its monitor, and the way to its agent, opened anew when it breaks. */
import path from 'node:path'
import type { Deps } from '../deps.ts'
import { type GuestChannel, openGuestChannel } from '../guest/channel.ts'
import { lastWords } from './launch.ts'
import { isAlive } from './process.ts'
import type { Qmp } from './qemu/qmp.ts'
import type { VmRecord } from './registry.ts'

const CHANNEL_LIMIT_MS = 5_000

export class Vm {
  record: VmRecord
  readonly qmp: Qmp
  readonly #sockets: { agent: string; hello: string }
  #channel: Promise<GuestChannel> | undefined
  /** Set when we end it ourselves: its death is then no news. */
  ending = false

  constructor(record: VmRecord, qmp: Qmp, sockets: { agent: string; hello: string }, channel?: GuestChannel) {
    this.record = record
    this.qmp = qmp
    this.#sockets = sockets
    if (channel) this.#keep(channel)
  }

  /** The open way to its agent; whoever asks while it is being opened gets the same one. */
  channel(): Promise<GuestChannel> {
    this.#channel ??= this.#open()
    return this.#channel
  }

  async #open(): Promise<GuestChannel> {
    try {
      const channel = await openGuestChannel(this.#sockets, AbortSignal.timeout(CHANNEL_LIMIT_MS))
      this.#keep(channel)
      return channel
    } catch (error) {
      this.#channel = undefined
      throw error
    }
  }

  #keep(channel: GuestChannel): void {
    const kept = Promise.resolve(channel)
    this.#channel = kept
    void channel.closed.then(() => {
      if (this.#channel === kept) this.#channel = undefined
    })
  }

  async close(): Promise<void> {
    this.qmp.close()
    const channel = await this.#channel?.catch(() => undefined)
    channel?.close()
  }
}

/** Settles when its QEMU is gone, with the best reason there is. A lost connection alone is not a death. */
export async function untilDead(deps: Deps, vm: Vm): Promise<string> {
  await vm.qmp.closed
  const { qemu, id } = vm.record
  for (let waited = 0; qemu && isAlive(qemu) && waited < 2_000; waited += 20)
    await new Promise((r) => setTimeout(r, 20))
  return `its QEMU ended: ${await lastWords(path.join(deps.registry.homeOf(id), 'qemu.log'))}`
}
