/**
 * All sandboxes of this host, and what may be done with them. One operation at a time on each: a second one with the
 * same fence waits for the answer of the first, any other is refused. Only a delete goes over all of them.
 */
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
import { listenToSignals } from '../guest/signals.ts'
import { HostError } from '../host-error.ts'
import type { Manifest } from '../snapshots/manifest.ts'
import { type Body, type BodyRecord, endBody, releaseBody } from './body.ts'
import { createVm } from './create.ts'
import { addChild, captureLive, FIRST_GENERATION, findForkSource } from './fork.ts'
import { countAll, keepCounts } from './network.ts'
import { pauseVm } from './pause.ts'
import { connectToPort } from './port.ts'
import type { VmRecord } from './registry.ts'
import { resumeVm } from './resume.ts'
import type { Draft } from './save.ts'

type Operation = { name: string; fence: number; abort: AbortController; done: Promise<object> }
type Entry = {
  record: VmRecord
  body?: Body
  doing?: Operation
  /** Of a body that was paused: until it is kept on standby, or gone. */
  settling?: Promise<void>
  /** Ends listening to what the guest asks for. */
  quiet?: AbortController
  /** Of its network, as this host agent was told it. */
  revision?: number
  /** To its ports, from outside. */
  connections: Set<Socket>
}

/** Long enough for any request that was under way when its sandbox was deleted to have come and gone. */
const TOMBSTONE_MS = 10 * 60_000

export class Vms {
  readonly #deps: Deps
  readonly #entries = new Map<string, Entry>()
  /** The highest fence seen for a sandbox that is gone: a create that comes late must not bring it back. */
  readonly #tombstones = new Map<string, number>()

  constructor(deps: Deps) {
    this.#deps = deps
  }

  list(): HostVm[] {
    return [...this.#entries.values()].map(({ record }) => {
      const generation = this.#deps.snapshots.newest(record.id)?.generation
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
    return [...this.#entries.values()].map((entry) => entry.record)
  }

  /** The body of one that runs. */
  get(id: string): Body {
    const { record, body } = this.#find(id)
    if (!body || record.state !== 'running') throw new HostError('guest_unreachable', `${id} is ${record.state}`)
    return body
  }

  /** A caller that goes away wants no sandbox any more; asked twice with one fence, the second comes too late. */
  async create(request: HostVmCreateBody, signal: AbortSignal): Promise<HostVmCreated> {
    const { id, fence } = request
    this.#mustBeNew(id, fence)
    const record: VmRecord = { id, fence, state: 'creating', ip: request.ip, disk_mib: request.disk_mib }
    const entry: Entry = newEntry(record)
    this.#entries.set(id, entry)
    return this.#do(entry, 'create', fence, async (abort) => {
      const undo = new Undo()
      try {
        const limit = AbortSignal.any([signal, abort, AbortSignal.timeout(request.limit_ms)])
        const { body, created } = await createVm(this.#deps, request, undo, limit)
        Object.assign(record, { state: 'running', body: body.record } satisfies Partial<VmRecord>)
        await this.#deps.registry.write(record)
        entry.revision = request.network.revision
        this.#watch(entry, body)
        return created
      } catch (error) {
        await undo.run(this.#deps.log)
        await this.#deps.registry.remove(id)
        this.#entries.delete(id)
        if (error instanceof HostError) throw error
        throw new HostError('boot_failed', `could not create ${id}: ${errorText(error)}`, { cause: error })
      }
    }) as Promise<HostVmCreated>
  }

  async pause(id: string, { fence }: HostVmPauseBody): Promise<HostVmPaused> {
    const entry = this.#find(id)
    const before = this.#before<HostVmPaused>(entry, 'pause', fence)
    if (before) return before
    const { body, record } = entry
    const newest = this.#deps.snapshots.newest(id)
    // Whoever asked before did not live to hear it.
    if (record.state === 'paused' && newest) return this.#answerPaused(record, fence, newest.manifest)
    if (!body || record.state !== 'running') throw wrongState(record, 'running')
    return this.#do(entry, 'pause', fence, async () => {
      record.state = 'pausing'
      try {
        for (const connection of entry.connections) connection.destroy()
        const { paused, memory } = await pauseVm(this.#deps, record, body)
        await keepCounts(this.#deps, record, body.record)
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
        const about = { ip: record.ip, dirtyBytes: paused.dirty_bytes, diskMib: record.disk_mib }
        entry.settling = this.#deps.standby.add(memory, body, about)
        return paused
      } catch (error) {
        if (record.state === 'pausing') record.state = 'running'
        throw error
      }
    })
  }

  async resume(id: string, request: HostVmResumeBody): Promise<HostVmResumed> {
    const entry = this.#find(id)
    const { fence } = request
    const before = this.#before<HostVmResumed>(entry, 'resume', fence)
    if (before) return before
    const { record } = entry
    const was = record.state
    if (was !== 'paused' && was !== 'dead') throw wrongState(record, 'paused or dead')
    return this.#do(entry, 'resume', fence, async (abort) => {
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
          await endBody(this.#deps, body.record, body)
          throw error
        }
        for (const key of ['reason', 'unborn', 'signal'] as const) delete record[key]
        Object.assign(record, risen)
        entry.revision = request.network.revision
        this.#watch(entry, body)
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
    const entry = this.#find(id)
    const missing = request.children.filter((child) => !this.#isThere(child))
    for (const child of missing) this.#mustBeNew(child.id, child.fence)
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
    const source = this.#do(entry, 'fork', record.fence, async () => {
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
    const entries = children.map((child) => {
      const entry = newEntry({ ...child, state: 'creating', ip: '', disk_mib: 0 })
      this.#entries.set(child.id, entry)
      return entry
    })
    const source = open()
    const done = entries.map((entry) =>
      this.#do(entry, 'fork', entry.record.fence, async () => {
        const { id, fence } = entry.record
        try {
          Object.assign(entry.record, await addChild(this.#deps, (await source).saved, { id, fence }))
          return { generation: FIRST_GENERATION }
        } catch (error) {
          this.#entries.delete(id)
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
    if (entry && fence < entry.record.fence) throw new HostError('fence_lost', `${id} is at ${entry.record.fence}`)
    this.#bury(id, fence)
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
    const memory = this.#deps.snapshots.newest(id)?.manifest.memory.id
    if (memory !== undefined && record.state === 'paused') await this.#deps.standby.drop(memory)
    if (record.body) await endBody(this.#deps, record.body, entry.body)
    await crashPoint('host.delete.ended')
    await this.#deps.registry.remove(id)
    await crashPoint('host.delete.unrecorded')
    await this.#deps.snapshots.deleteAll(id)
    this.#entries.delete(id)
  }

  /** One after the other with whatever else changes the slot (slots.ts); the fence is that of the last operation. */
  async changeNetwork(id: string, { fence, network }: HostVmNetworkBody): Promise<HostVmNetworkApplied> {
    const entry = this.#find(id)
    if (fence < entry.record.fence) throw new HostError('fence_lost', `${id} is at ${entry.record.fence}`)
    const { slot } = this.#running(entry).record
    const applied = await this.#deps.network.slots.change(slot, network)
    entry.revision = applied.revision
    return applied
  }

  reportNetwork(id: string): Promise<HostVmNetworkReport> {
    return this.#deps.network.slots.report(this.#running(this.#find(id)).record.slot)
  }

  async listNetworks(): Promise<HostNetworks> {
    const entries = [...this.#entries.values()]
    return { vms: await countAll(this.#deps, entries) }
  }

  /** A connection to one of its ports; cut when it is paused or ends. */
  async connect(id: string, port: number, signal: AbortSignal): Promise<Socket> {
    const entry = this.#find(id)
    this.#running(entry)
    const connection = await connectToPort(entry.record.ip, port, signal)
    entry.connections.add(connection)
    connection.once('close', () => entry.connections.delete(connection))
    if (entry.record.state !== 'running') connection.destroy()
    return connection
  }

  /** Found at start: with a body that lives, saved, or dead. */
  adopt(record: VmRecord, body?: Body): void {
    const entry: Entry = newEntry(record)
    this.#entries.set(record.id, entry)
    if (body) this.#watch(entry, body)
  }

  async #answerPaused(record: VmRecord, fence: number, { generation, memory, state }: Manifest): Promise<HostVmPaused> {
    const written_bytes = memory.bytes + state.bytes
    const counts = record.counts ? { counts: record.counts } : {}
    const answer = { generation, took_ms: 0, dirty_bytes: memory.dirty_bytes, written_bytes, ...counts }
    record.fence = fence
    await this.#settle(record, 'pause', fence, answer)
    return answer
  }

  #find(id: string): Entry {
    const entry = this.#entries.get(id)
    if (!entry) throw new HostError('not_found', `no sandbox ${id} here`)
    return entry
  }

  #running({ record, body }: Entry): Body {
    if (!body || record.state !== 'running') throw wrongState(record, 'running')
    return body
  }

  #isThere({ id, fence }: { id: string; fence: number }): boolean {
    const record = this.#entries.get(id)?.record
    return record !== undefined && record.fence >= fence
  }

  #mustBeNew(id: string, fence: number): void {
    if (this.#entries.has(id)) throw new HostError('fence_lost', `${id} is here already`)
    const seen = this.#tombstones.get(id) ?? 0
    if (fence <= seen) throw new HostError('fence_lost', `${id} is past ${fence}`)
  }

  /** What the same operation with the same fence has answered, or will. */
  #before<Answer>({ record, doing }: Entry, name: string, fence: number): Promise<Answer> | undefined {
    if (fence < record.fence) throw new HostError('fence_lost', `${record.id} is at ${record.fence}`)
    if (doing && doing.name === name && doing.fence === fence) return doing.done as Promise<Answer>
    if (doing) throw new HostError('wrong_state', `${record.id} is ${record.state}: ${doing.name} is under way`)
    const { done } = record
    if (done?.operation === name && done.fence === fence) return Promise.resolve(done.answer as Answer)
    return undefined
  }

  #do<Answer extends object>(
    entry: Entry,
    name: string,
    fence: number,
    work: (abort: AbortSignal) => Promise<Answer>,
  ): Promise<Answer> {
    const abort = new AbortController()
    entry.record.fence = fence
    const done = work(abort.signal).finally(() => {
      delete entry.doing
    })
    entry.doing = { name, fence, abort, done }
    done.catch(() => {}) // Whoever asked gets it; nobody may be waiting any more.
    return done
  }

  /** On disk before it is said. */
  async #settle(record: VmRecord, operation: string, fence: number, answer: object): Promise<void> {
    record.done = { operation, fence, answer }
    await this.#deps.registry.write(record)
  }

  /** Of a sandbox that has another body by now. */
  async #forget(dead: BodyRecord): Promise<void> {
    await endBody(this.#deps, dead).catch((error) =>
      this.#deps.log.error({ err: error, body: dead.id }, 'what is left of a dead body could not be removed'),
    )
  }

  #watch(entry: Entry, body: Body): void {
    entry.body = body
    const quiet = new AbortController()
    entry.quiet = quiet
    void listenToSignals(
      () => body.channel(),
      async (signal) => {
        entry.record.signal = signal
        await this.#deps.registry.write(entry.record)
      },
      quiet.signal,
    )
    void body.qmp.closed.then(() => quiet.abort())
    void body.untilDead(this.#deps).then((reason) => (body.ending ? undefined : this.#mourn(entry, body, reason)))
  }

  /** Its process is ended for certain before it counts as dead: its disk may be started from then. */
  async #mourn(entry: Entry, body: Body, reason: string): Promise<void> {
    const { record } = entry
    this.#deps.log.warn({ sandbox: record.id, reason }, 'a sandbox died')
    try {
      await keepCounts(this.#deps, record, body.record)
      await releaseBody(this.#deps, body.record, body)
      delete entry.revision
      if (entry.body !== body) return
      delete entry.body
      Object.assign(record, { state: 'dead', reason })
      await this.#deps.registry.write(record)
    } catch (error) {
      this.#deps.log.error({ err: error, sandbox: record.id }, 'the end of a sandbox could not be seen to')
    }
  }

  #bury(id: string, fence: number): void {
    this.#tombstones.set(id, Math.max(fence, this.#tombstones.get(id) ?? 0))
    setTimeout(() => this.#tombstones.delete(id), TOMBSTONE_MS).unref()
  }
}

const newEntry = (record: VmRecord): Entry => ({ record, connections: new Set() })

const wrongState = ({ id, state }: VmRecord, expected: string): HostError =>
  new HostError('wrong_state', `${id} is ${state}, expected ${expected}`)
