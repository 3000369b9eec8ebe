/**
 * The table of this host's sandboxes, and what keeps operations on one of them apart. One at a time on each: a second
 * one with the same fence waits for the answer of the first, any other is refused. Only a delete goes over all of them.
 */
import type { Socket } from 'node:net'
import { HostError } from '../host-error.ts'
import type { Vmm } from '../vmm/vmm.ts'
import type { VmRecord } from './registry.ts'

type Operation = { name: string; fence: number; abort: AbortController; done: Promise<object> }
export type Entry = {
  record: VmRecord
  body?: Vmm
  doing?: Operation
  /** Of a body that was paused: until it is kept on standby, or gone. */
  settling?: Promise<void>
  /** Ends listening to what the guest asks for. */
  quiet?: AbortController
  /** Of its network, as this host agent was told it. */
  revision?: number
  /** To its ports, from outside. */
  connections: Set<Socket>
  /** That do not stand yet. */
  connecting: number
}

/** Long enough for any request that was under way when its sandbox was deleted to have come and gone. */
const TOMBSTONE_MS = 10 * 60_000

export class Entries {
  readonly #entries = new Map<string, Entry>()
  /** The highest fence seen for a sandbox that is gone: a create that comes late must not bring it back. */
  readonly #tombstones = new Map<string, number>()

  all(): Entry[] {
    return [...this.#entries.values()]
  }

  get(id: string): Entry | undefined {
    return this.#entries.get(id)
  }

  find(id: string): Entry {
    const entry = this.#entries.get(id)
    if (!entry) throw new HostError('not_found', `no sandbox ${id} here`)
    return entry
  }

  add(record: VmRecord): Entry {
    const entry: Entry = { record, connections: new Set(), connecting: 0 }
    this.#entries.set(record.id, entry)
    return entry
  }

  remove(id: string): void {
    this.#entries.delete(id)
  }

  has({ id, fence }: { id: string; fence: number }): boolean {
    const record = this.#entries.get(id)?.record
    return record !== undefined && record.fence >= fence
  }

  mustBeNew({ id, fence }: { id: string; fence: number }): void {
    if (this.#entries.has(id)) throw new HostError('fence_lost', `${id} is here already`)
    const seen = this.#tombstones.get(id) ?? 0
    if (fence <= seen) throw new HostError('fence_lost', `${id} is past ${fence}`)
  }

  addTombstone(id: string, fence: number): void {
    this.#tombstones.set(id, Math.max(fence, this.#tombstones.get(id) ?? 0))
    setTimeout(() => this.#tombstones.delete(id), TOMBSTONE_MS).unref()
  }
}

/** What the same operation with the same fence has answered, or will. */
export function answeredBefore<Answer>(
  { record, doing }: Entry,
  name: string,
  fence: number,
): Promise<Answer> | undefined {
  checkFence(record, fence)
  if (doing && doing.name === name && doing.fence === fence) return doing.done as Promise<Answer>
  if (doing) throw new HostError('wrong_state', `${record.id} is ${record.state}: ${doing.name} is under way`)
  const { done } = record
  if (done?.operation === name && done.fence === fence) return Promise.resolve(done.answer as Answer)
  return undefined
}

/** From now until it ends, nothing else is done with this sandbox. */
export function operate<Answer extends object>(
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

export function checkFence({ id, fence: at }: VmRecord, fence: number): void {
  if (fence < at) throw new HostError('fence_lost', `${id} is at ${at}`)
}

export function mustRun({ record, body }: Entry): Vmm {
  if (!body || record.state !== 'running') throw wrongState(record, 'running')
  return body
}

export const wrongState = ({ id, state }: VmRecord, expected: string): HostError =>
  new HostError('wrong_state', `${id} is ${state}, expected ${expected}`)
