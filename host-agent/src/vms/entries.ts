/**
 * The sandboxes of this host in memory, and the rules that keep operations on one sandbox apart: one operation at a time.
 * A second request with the same name and fence waits for the response of the first; any other is refused. Only a delete
 * may interrupt an operation.
 */
import type { Socket } from 'node:net'
import type { VmMounts } from '../disks/vm-mounts.ts'
import { HostError } from '../host-error.ts'
import type { Vmm } from '../vmm/vmm.ts'
import { toStored, type VmRecord } from './record.ts'

type Operation = { name: string; fence: number; abort: AbortController; done: Promise<object> }

/** What exists only while the sandbox runs. */
export type LiveVm = {
  vmm: Vmm
  /** Aborted when it no longer runs: ends what listens to the guest, and its mounts. */
  signals: AbortController
  /** Undefined if this host cannot mount disks. */
  mounts: VmMounts | undefined
  /** Of the network rules in force; undefined for a VMM that was adopted and whose rules this process never applied. */
  networkRevision: number | undefined
}

export type Entry = {
  readonly id: string
  /** Changed by `moveVm` only. */
  readonly record: VmRecord
  live: LiveVm | undefined
  operation: Operation | undefined
  /** Settles when the VMM of the last pause is on standby or stopped. */
  standbyReady: Promise<void> | undefined
  /** To its ports, from outside. */
  readonly connections: Set<Socket>
  /** Connections still being established. */
  connecting: number
}

/** Longer than any request that was under way when its sandbox was deleted. */
const TOMBSTONE_MS = 10 * 60_000

export class Entries {
  readonly #entries = new Map<string, Entry>()
  /** The highest fence seen for a deleted sandbox: a create that arrives late must not bring it back. */
  readonly #tombstones = new Map<string, number>()
  /** Sandboxes whose records cannot be read, and why (adopt.ts). They can be deleted and nothing else. */
  readonly unreadable = new Map<string, string>()

  list(): Entry[] {
    return [...this.#entries.values()]
  }

  find(id: string): Entry | undefined {
    return this.#entries.get(id)
  }

  get(id: string): Entry {
    const entry = this.#entries.get(id)
    const why = this.unreadable.get(id)
    if (why !== undefined) throw new HostError('wrong_state', `the record of ${id} cannot be read: ${why}`)
    if (!entry) throw new HostError('not_found', `sandbox ${id} is not on this host`)
    return entry
  }

  add(record: VmRecord): Entry {
    const entry: Entry = {
      ...{ id: record.id, record, live: undefined, operation: undefined, standbyReady: undefined },
      ...{ connections: new Set(), connecting: 0 },
    }
    this.#entries.set(record.id, entry)
    return entry
  }

  delete(id: string): void {
    this.#entries.delete(id)
  }

  has({ id, fence }: { id: string; fence: number }): boolean {
    const record = this.#entries.get(id)?.record
    return record !== undefined && record.fence >= fence
  }

  /** Throws `fence_lost` unless the sandbox may be created: it does not exist, and was not deleted by a newer request. */
  checkNew({ id, fence }: { id: string; fence: number }): void {
    if (this.#entries.has(id) || this.unreadable.has(id)) throw new HostError('fence_lost', `${id} exists already`)
    const seen = this.#tombstones.get(id) ?? 0
    if (fence <= seen) throw new HostError('fence_lost', `${id} was deleted with fence ${seen}`)
  }

  addTombstone(id: string, fence: number): void {
    this.#tombstones.set(id, Math.max(fence, this.#tombstones.get(id) ?? 0))
    setTimeout(() => this.#tombstones.delete(id), TOMBSTONE_MS).unref()
  }
}

/**
 * The response to the same request, if it was made before: the one that was stored, or the one under way. Throws if
 * another operation is under way or the fence is too low.
 */
export function findPreviousResponse<Response extends object>(
  { record, operation }: Entry,
  name: 'pause' | 'resume',
  fence: number,
): Promise<Response> | undefined {
  checkFence(record, fence)
  // Of the same operation, so of the same type.
  if (operation && operation.name === name && operation.fence === fence) return operation.done as Promise<Response>
  if (operation) throw new HostError('wrong_state', `${record.id} is ${record.state}: ${operation.name} is under way`)
  const last = toStored(record)?.lastOperation
  return last?.name === name && last.fence === fence ? Promise.resolve(last.response as Response) : undefined
}

/**
 * Settles when the operation under way has ended, if it has one of these names; undefined if there is none. Another one may
 * have begun by then, so callers ask in a loop, and start theirs in the same tick in which there is none:
 *
 *   for (let wait = findWait(entry, names); wait; wait = findWait(entry, names)) await wait
 */
export function findWait({ operation }: Entry, names: readonly string[]): Promise<unknown> | undefined {
  return operation && names.includes(operation.name) ? operation.done.catch(() => {}) : undefined
}

/** Until `work` settles, no other operation on this sandbox starts. */
export function runOperation<Response extends object>(
  entry: Entry,
  name: string,
  fence: number,
  work: (aborted: AbortSignal) => Promise<Response>,
): Promise<Response> {
  const abort = new AbortController()
  const done = work(abort.signal).finally(() => {
    entry.operation = undefined
  })
  entry.operation = { name, fence, abort, done }
  done.catch(() => {}) // The caller gets the error, if it is still connected.
  return done
}

export function checkFence({ id, fence: newest }: VmRecord, fence: number): void {
  if (fence < newest) throw new HostError('fence_lost', `${id} is at fence ${newest}`)
}

export function getLive({ record, live }: Entry): LiveVm {
  if (!live || record.state !== 'running') throw wrongState(record, 'running')
  return live
}

export const wrongState = ({ id, state }: VmRecord, expected: string): HostError =>
  new HostError('wrong_state', `${id} is ${state}, expected ${expected}`)
