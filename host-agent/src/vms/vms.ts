/** All VMs of this host, and what may be done with them. */

import { errorText } from '@warren/kit/text'
import { Undo } from '@warren/kit/undo'
import type { HostVm, HostVmCreateBody, HostVmCreated } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import { createVm } from './create.ts'
import type { VmRecord } from './registry.ts'
import { removeVm } from './remove.ts'
import { untilDead, type Vm } from './vm.ts'

type Entry = { record: VmRecord; vm?: Vm; making?: { abort: AbortController; done: Promise<unknown> } }

/** Long enough for any request that was under way when its VM was deleted to have come and gone. */
const TOMBSTONE_MS = 10 * 60_000

export class Vms {
  readonly #deps: Deps
  readonly #entries = new Map<string, Entry>()
  /** The highest fence seen for a VM that is gone: a create that comes late must not bring it back. */
  readonly #tombstones = new Map<string, number>()

  constructor(deps: Deps) {
    this.#deps = deps
  }

  list(): HostVm[] {
    return [...this.#entries.values()].map(({ record }) => ({
      id: record.id,
      fence: record.fence,
      state: record.state,
      ...(record.reason === undefined ? {} : { reason: record.reason }),
    }))
  }

  records(): VmRecord[] {
    return [...this.#entries.values()].map((entry) => entry.record)
  }

  get(id: string): Vm {
    const entry = this.#entries.get(id)
    if (!entry) throw new HostError('not_found', `no VM ${id} here`)
    if (!entry.vm) throw new HostError('guest_unreachable', `VM ${id} is ${entry.record.state}`)
    return entry.vm
  }

  /** Asked twice with one fence, the second gets the answer of the first. */
  async create(body: HostVmCreateBody, signal: AbortSignal): Promise<HostVmCreated> {
    const { id, fence } = body
    const seen = Math.max(this.#tombstones.get(id) ?? 0, this.#entries.get(id)?.record.fence ?? 0)
    if (fence < seen || this.#tombstones.get(id) === fence) throw new HostError('fence_lost', `${id} is past ${fence}`)
    if (this.#entries.has(id)) throw new HostError('fence_lost', `${id} is here already`)

    const abort = new AbortController()
    const limit = AbortSignal.any([signal, abort.signal, AbortSignal.timeout(body.limit_ms)])
    const record: VmRecord = {
      id,
      fence,
      state: 'creating',
      ip: body.ip,
      uid: 0,
      base: '',
      disk_mib: body.disk_mib,
    }
    const entry: Entry = { record }
    this.#entries.set(id, entry)
    const undo = new Undo()
    const done = createVm(this.#deps, body, record, undo, limit)
    entry.making = { abort, done: done.catch(() => {}) }
    try {
      const { vm, created } = await done
      delete entry.making
      this.#watch(entry, vm)
      return created
    } catch (error) {
      await undo.run(this.#deps.log)
      this.#entries.delete(id)
      if (error instanceof HostError) throw error
      throw new HostError('boot_failed', `could not create ${id}: ${errorText(error)}`, { cause: error })
    }
  }

  /** Ends a create that is under way, too. */
  async delete(id: string, fence: number): Promise<void> {
    const entry = this.#entries.get(id)
    if (entry && fence < entry.record.fence) throw new HostError('fence_lost', `${id} is at ${entry.record.fence}`)
    this.#bury(id, fence)
    if (!entry) return
    if (entry.making) {
      entry.making.abort.abort(new HostError('fence_lost', `${id} was deleted`))
      await entry.making.done
    }
    if (!this.#entries.has(id)) return
    if (entry.vm) entry.vm.ending = true
    await removeVm(this.#deps, entry.record, entry.vm)
    this.#entries.delete(id)
  }

  /** A VM found at start that lives. */
  adopt(vm: Vm): void {
    const entry: Entry = { record: vm.record }
    this.#entries.set(vm.record.id, entry)
    this.#watch(entry, vm)
  }

  /** A VM found at start that does not: the control plane is told, and deletes it. */
  mourn(record: VmRecord): void {
    this.#entries.set(record.id, { record })
  }

  #watch(entry: Entry, vm: Vm): void {
    entry.vm = vm
    void untilDead(this.#deps, vm).then(async (reason) => {
      if (vm.ending) return
      this.#deps.log.warn({ sandbox: vm.record.id, reason }, 'a VM died')
      Object.assign(entry.record, { state: 'dead', reason })
      delete entry.vm
      await vm.close()
      await this.#deps.registry.write(entry.record).catch((error) => this.#deps.log.error({ err: error }, 'no record'))
    })
  }

  #bury(id: string, fence: number): void {
    this.#tombstones.set(id, Math.max(fence, this.#tombstones.get(id) ?? 0))
    setTimeout(() => this.#tombstones.delete(id), TOMBSTONE_MS).unref()
  }
}
