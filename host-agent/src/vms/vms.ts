/** All sandboxes of this host, and what may be done with them; entries.ts keeps the operations apart. */
import type { Socket } from 'node:net'
import { crashPoint } from '@warren/kit/crash-point'
import { errorText } from '@warren/kit/text'
import { Undo } from '@warren/kit/undo'
import type {
  HostNetworks,
  HostVm,
  HostVmCreateBody,
  HostVmCreated,
  HostVmForkBody,
  HostVmForked,
  HostVmNetworkApplied,
  HostVmNetworkBody,
  HostVmNetworkReport,
  HostVmPauseBody,
  HostVmPaused,
  HostVmResumeBody,
  HostVmResumed,
} from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import type { Manifest } from '../snapshots/manifest.ts'
import type { Draft } from '../vmm/save.ts'
import { stopVmm, type Vmm, type VmmRecord } from '../vmm/vmm.ts'
import { countAll, saveCounts } from './counts.ts'
import { createVm } from './create.ts'
import { answeredBefore, checkFence, Entries, mustRun, operate, wrongState } from './entries.ts'
import { saveFlows, withFlows } from './flows.ts'
import { addChild, captureLive, FIRST_GENERATION, findForkSource } from './fork.ts'
import { pauseVm } from './pause.ts'
import { connectToPort } from './port.ts'
import type { VmRecord } from './registry.ts'
import { resumeVm } from './resume.ts'
import { watch } from './watch.ts'

/** To the ports of one sandbox, by anybody who knows its name. */
const CONNECTIONS_MAX = 1024

export class Vms {
  readonly #deps: Deps
  readonly #entries = new Entries()

  constructor(deps: Deps) {
    this.#deps = deps
  }

  list(): HostVm[] {
    return this.#entries.all().map(({ record }) => {
      const generation = this.#deps.snapshots.findNewest(record.id)?.generation
      return {
        id: record.id,
        fence: record.fence,
        state: record.state,
        ...(record.reason === undefined ? {} : { reason: record.reason }),
        ...(generation === undefined ? {} : { generation }),
        ...(record.signal === undefined ? {} : { signal: record.signal }),
      }
    })
  }

  records(): VmRecord[] {
    return this.#entries.all().map((entry) => entry.record)
  }

  /** The body of one that runs. */
  get(id: string): Vmm {
    const { record, body } = this.#entries.find(id)
    if (!body || record.state !== 'running') throw new HostError('guest_unreachable', `${id} is ${record.state}`)
    return body
  }

  /** A caller that goes away wants no sandbox any more; asked twice with one fence, the second comes too late. */
  async create(request: HostVmCreateBody, signal: AbortSignal): Promise<HostVmCreated> {
    const { id, fence } = request
    this.#entries.mustBeNew(request)
    const record: VmRecord = { id, fence, state: 'creating', ip: request.ip, disk_mib: request.disk_mib }
    const entry = this.#entries.add(record)
    return operate(entry, 'create', fence, async (abort) => {
      const undo = new Undo()
      try {
        const limit = AbortSignal.any([signal, abort, AbortSignal.timeout(request.limit_ms)])
        // It says `running` before the guest does, but to nobody: a create that never answered is deleted by who asked.
        const note = (made: Vmm) => this.#deps.registry.write({ ...record, state: 'running', body: made.record })
        const { body, created } = await createVm(this.#deps, request, note, undo, limit)
        Object.assign(record, { state: 'running', body: body.record } satisfies Partial<VmRecord>)
        entry.revision = request.network.revision
        watch(this.#deps, entry, body)
        return created
      } catch (error) {
        await undo.run(this.#deps.log)
        await this.#deps.registry.remove(id)
        this.#entries.remove(id)
        if (error instanceof HostError) throw error
        throw new HostError('boot_failed', `could not create ${id}: ${errorText(error)}`, { cause: error })
      }
    }) as Promise<HostVmCreated>
  }

  async pause(id: string, { fence, limit_ms }: HostVmPauseBody): Promise<HostVmPaused> {
    const entry = this.#entries.find(id)
    const before = answeredBefore<HostVmPaused>(entry, 'pause', fence)
    if (before) return before
    const { body, record } = entry
    const newest = this.#deps.snapshots.findNewest(id)
    // Whoever asked before did not live to hear it.
    if (record.state === 'paused' && newest) return this.#answerPaused(record, fence, newest.manifest)
    if (!body || record.state !== 'running') throw wrongState(record, 'running')
    return operate(entry, 'pause', fence, async () => {
      record.state = 'pausing'
      try {
        for (const connection of entry.connections) connection.destroy()
        const { paused, memory } = await pauseVm(this.#deps, record, body, limit_ms)
        await saveCounts(this.#deps, record, body.record)
        if (record.counts) paused.counts = record.counts
        body.ending = true
        delete entry.revision
        entry.quiet?.abort()
        delete record.body
        delete record.signal
        delete entry.body
        Object.assign(record, { state: 'paused', generation: paused.generation } satisfies Partial<VmRecord>)
        // It is paused whether this can be written or not: the next start sees it by its generation.
        await this.#settle(record, 'pause', fence, paused).catch((error) =>
          this.#deps.log.error({ err: error, sandbox: id }, 'could not write the record of a paused sandbox'),
        )
        await crashPoint('host.pause.recorded')
        // Nobody waits for it to be kept or gone, except whoever resumes or deletes the sandbox.
        entry.settling = this.#standBy(record, body, memory, paused.dirty_bytes)
        return paused
      } catch (error) {
        if (record.state === 'pausing') record.state = 'running'
        throw error
      }
    })
  }

  async resume(id: string, request: HostVmResumeBody): Promise<HostVmResumed> {
    const entry = this.#entries.find(id)
    const { fence } = request
    const before = answeredBefore<HostVmResumed>(entry, 'resume', fence)
    if (before) return before
    const { record } = entry
    const was = record.state
    if (was !== 'paused' && was !== 'dead') throw wrongState(record, 'paused or dead')
    return operate(entry, 'resume', fence, async (abort) => {
      record.state = 'resuming'
      try {
        await entry.settling
        const limit = AbortSignal.any([abort, AbortSignal.timeout(request.limit_ms)])
        const { body, resumed } = await resumeVm(this.#deps, record, request, limit)
        const { reason, unborn, signal, body: dead, ...rest } = record
        const risen: VmRecord = { ...rest, state: 'running', ip: request.ip, body: body.record }
        if (resumed.generation !== undefined) risen.generation = resumed.generation
        risen.done = { operation: 'resume', fence, answer: resumed }
        try {
          await this.#deps.registry.write(risen)
        } catch (error) {
          await stopVmm(this.#deps, body.record, body)
          throw error
        }
        for (const key of ['reason', 'unborn', 'signal'] as const) delete record[key]
        Object.assign(record, risen)
        entry.revision = request.network.revision
        watch(this.#deps, entry, body)
        if (dead) await this.#forget(dead)
        return resumed
      } catch (error) {
        if (record.state === 'resuming') record.state = was
        throw error
      }
    })
  }

  /** Children are there from the moment they are asked for: asked again, or deleted, meanwhile, they are found. */
  async fork(id: string, request: HostVmForkBody): Promise<HostVmForked> {
    const entry = this.#entries.find(id)
    const missing = request.children.filter((child) => !this.#entries.has(child))
    for (const child of missing) this.#entries.mustBeNew(child)
    const others = request.children.flatMap((child) => this.#entries.get(child.id)?.doing?.done ?? [])
    if (missing.length === 0) {
      await Promise.all(others)
      return { generation: FIRST_GENERATION }
    }
    const { record, body } = entry
    if (!request.live)
      return this.#addChildren(missing, async () => findForkSource(this.#deps, record, request.generation))
    if (!body || record.state !== 'running' || entry.doing) throw wrongState(record, 'running')
    let stopped_ms = 0
    const source = operate(entry, 'fork', record.fence, async () => {
      const captured = await captureLive(this.#deps, record, body)
      stopped_ms = captured.stopped_ms
      return captured
    })
    return { ...(await this.#addChildren(missing, () => source)), stopped_ms }
  }

  async #addChildren(
    children: { id: string; fence: number }[],
    open: () => Promise<Draft>,
  ): Promise<{ generation: number }> {
    const entries = children.map((child) => this.#entries.add({ ...child, state: 'creating', ip: '', disk_mib: 0 }))
    const source = open()
    const done = entries.map((entry) =>
      operate(entry, 'fork', entry.record.fence, async () => {
        const { id, fence } = entry.record
        try {
          Object.assign(entry.record, await addChild(this.#deps, (await source).saved, { id, fence }))
          return { generation: FIRST_GENERATION }
        } catch (error) {
          this.#entries.remove(id)
          throw error
        }
      }),
    )
    const results = await Promise.allSettled(done)
    // Only when all have named them, or failed to.
    await source.then((draft) => draft.reservation.release())
    for (const result of results) if (result.status === 'rejected') throw result.reason
    return { generation: FIRST_GENERATION }
  }

  /** Ends a create or resume that is under way; waits for a pause, which cannot be left half done. */
  async delete(id: string, fence: number): Promise<void> {
    const entry = this.#entries.get(id)
    if (entry) checkFence(entry.record, fence)
    this.#entries.addTombstone(id, fence)
    if (!entry) return
    entry.record.fence = fence
    if (entry.doing) {
      entry.doing.abort.abort(new HostError('fence_lost', `${id} was deleted`))
      await entry.doing.done.catch(() => {}) // Its caller is told.
    }
    for (const connection of entry.connections) connection.destroy()
    if (this.#entries.get(id) !== entry) return
    await entry.settling
    const { record } = entry
    const memory = this.#deps.snapshots.findNewest(id)?.manifest.memory.id
    if (memory !== undefined && record.state === 'paused') await this.#deps.standby.drop(memory)
    if (record.body) await stopVmm(this.#deps, record.body, entry.body)
    await crashPoint('host.delete.ended')
    await this.#deps.registry.remove(id)
    await crashPoint('host.delete.unrecorded')
    await this.#deps.snapshots.deleteAll(id)
    this.#entries.remove(id)
  }

  /** One after the other with whatever else changes the slot (slots.ts); the fence is that of the last operation. */
  async changeNetwork(id: string, { fence, network }: HostVmNetworkBody): Promise<HostVmNetworkApplied> {
    const entry = this.#entries.find(id)
    checkFence(entry.record, fence)
    const { slot } = mustRun(entry).record
    const applied = await this.#deps.network.slots.change(slot, network)
    entry.revision = applied.revision
    return applied
  }

  async reportNetwork(id: string): Promise<HostVmNetworkReport> {
    const entry = this.#entries.find(id)
    const body = mustRun(entry).record
    return withFlows(await this.#deps.network.slots.report(body.slot), entry.record, body.id)
  }

  async listNetworks(): Promise<HostNetworks> {
    return { vms: await countAll(this.#deps, this.#entries.all()) }
  }

  /** A connection to one of its ports; cut when it is paused or ends. */
  async connect(id: string, port: number, signal: AbortSignal): Promise<Socket> {
    const entry = this.#entries.find(id)
    mustRun(entry)
    if (entry.connections.size + entry.connecting >= CONNECTIONS_MAX) {
      throw new HostError('too_many_streams', `${CONNECTIONS_MAX} connections to ports of ${id} are open`)
    }
    entry.connecting++
    const connection = await connectToPort(entry.record.ip, port, signal).finally(() => entry.connecting--)
    entry.connections.add(connection)
    connection.once('close', () => entry.connections.delete(connection))
    if (entry.record.state !== 'running') connection.destroy()
    return connection
  }

  /** Found at start: with a body that lives, saved, or dead. */
  adopt(record: VmRecord, body?: Vmm): void {
    const entry = this.#entries.add(record)
    if (body) watch(this.#deps, entry, body)
  }

  async #standBy(record: VmRecord, body: Vmm, memory: string, dirtyBytes: number): Promise<void> {
    const { id, ip, disk_mib: diskMib } = record
    if (await saveFlows(this.#deps, record, body.record)) {
      void this.#deps.registry
        .write(record)
        .catch((error) => this.#deps.log.warn({ err: error, sandbox: id }, 'could not write what a sandbox reached'))
    }
    await this.#deps.standby.add(memory, body, { sandbox: id, ip, dirtyBytes, diskMib })
  }

  async #answerPaused(record: VmRecord, fence: number, { generation, memory, state }: Manifest): Promise<HostVmPaused> {
    const written_bytes = memory.bytes + state.bytes
    const counts = record.counts ? { counts: record.counts } : {}
    const answer = { generation, took_ms: 0, dirty_bytes: memory.dirty_bytes, written_bytes, ...counts }
    record.fence = fence
    await this.#settle(record, 'pause', fence, answer)
    return answer
  }

  /** On disk before it is said. */
  async #settle(record: VmRecord, operation: string, fence: number, answer: object): Promise<void> {
    record.done = { operation, fence, answer }
    await this.#deps.registry.write(record)
  }

  /** Of a sandbox that has another body by now. */
  async #forget(dead: VmmRecord): Promise<void> {
    await stopVmm(this.#deps, dead).catch((error) =>
      this.#deps.log.error({ err: error, body: dead.id }, 'what is left of a dead body could not be removed'),
    )
  }
}
