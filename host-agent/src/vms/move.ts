/**
 * The only code that changes a sandbox's record. `VM_MOVES` says which move is possible in which state, and `moveVm` makes
 * it: one entry, one move, one new record. A move that is not in the table throws `wrong_state`.
 *
 *   creating ──createDone──▶ running ──pause──▶ pausing ──pauseDone──▶ paused ──resume──▶ resuming ──resumeDone──▶ running
 *      └──────forkDone──────────────────────────────────────────────▶ paused
 *
 * A pause that fails leads back to `running`, a resume that fails to the state before it. A VMM that exits makes the
 * sandbox `dead`, from where it can be resumed. A delete is possible in every state. It has no state here: it raises the
 * fence, and the record is deleted once the VMM has stopped (delete.ts).
 *
 * Moves change the record in memory. The caller decides when it is written (registry.ts), because the order differs: the
 * record of a resume is written before the resume counts as done, a pause counts as done when its generation is on disk.
 */
import type { HostCounts, HostVmPaused, HostVmResumed, HostVmSignal } from '@warren/protocol'
import { HostError } from '../host-error.ts'
import type { VmmRecord } from '../vmm/record.ts'
import type { DeadVm, PausedVm, PausingVm, RunningVm, SavedFlows, VmRecord, VmState } from './record.ts'
import { VM_STATES } from './record.ts'

type Move = { from: readonly VmState[]; to: readonly VmState[] | 'same' }

export const VM_MOVES = {
  createDone: { from: ['creating'], to: ['running'] },
  /** A fork exists, with a copy of its source's newest generation. */
  forkDone: { from: ['creating'], to: ['paused'] },
  pause: { from: ['running'], to: ['pausing'] },
  /** From `dead` if the VMM exited after the generation was committed: its state is saved. */
  pauseDone: { from: ['pausing', 'dead'], to: ['paused'] },
  pauseFailed: { from: ['pausing'], to: ['running'] },
  /** A newer operation asks for a pause that has already happened. */
  pauseRepeated: { from: ['paused'], to: ['paused'] },
  /** Found at start: a generation newer than the record, so the pause was committed before the host agent died. */
  pauseFound: { from: ['running', 'dead'], to: ['paused'] },
  resume: { from: ['paused', 'dead'], to: ['resuming'] },
  resumeDone: { from: ['resuming'], to: ['running'] },
  /** Back to the state that the resume started from. */
  resumeFailed: { from: ['resuming'], to: ['paused', 'dead'] },
  die: { from: ['running', 'pausing'], to: ['dead'] },
  /** The disk is about to grow. */
  resize: { from: ['running'], to: ['running'] },
  /** The guest has confirmed that its file system fills the disk. The VMM may have exited since. */
  resizeDone: { from: ['running', 'dead'], to: 'same' },
  /** The disk did not grow. */
  resizeFailed: { from: ['running', 'dead'], to: 'same' },
  /** The guest asked to be paused or deleted. */
  signal: { from: ['running', 'pausing'], to: 'same' },
  /** What the network counted, read before its slot is released. */
  usage: { from: ['running', 'pausing', 'paused', 'resuming', 'dead'], to: 'same' },
  delete: { from: VM_STATES, to: 'same' },
} as const satisfies Record<string, Move>
export type VmMove = keyof typeof VM_MOVES

/** What each move adds to the record. */
export type VmChanges = {
  createDone: { ip: string; diskMib: number; vmm: VmmRecord }
  forkDone: { diskMib: number; growPending: boolean; generation: number }
  pause: { fence: number }
  pauseDone: { fence: number; response: HostVmPaused }
  pauseFailed: object
  pauseRepeated: { fence: number; response: HostVmPaused }
  pauseFound: { generation: number }
  resume: { fence: number }
  resumeDone: {
    fence: number
    ip: string
    diskMib: number
    growPending: boolean
    vmm: VmmRecord
    response: HostVmResumed
  }
  resumeFailed: object
  die: { reason: string }
  resize: { diskMib: number }
  resizeDone: object
  resizeFailed: { diskMib: number; growPending: boolean }
  signal: { signal: HostVmSignal }
  usage: { counts?: HostCounts; flows?: SavedFlows[] }
  delete: { fence: number }
}

type In<M extends VmMove> = Extract<VmRecord, { state: (typeof VM_MOVES)[M]['from'][number] }>
type Out<M extends VmMove> = (typeof VM_MOVES)[M]['to'] extends 'same'
  ? In<M>
  : Extract<VmRecord, { state: (typeof VM_MOVES)[M]['to'][number] }>

/** Makes the move and returns the new record. */
export function moveVm<M extends VmMove>(entry: { readonly record: VmRecord }, move: M, change: VmChanges[M]): Out<M> {
  const next = nextRecord(entry.record, move, change)
  // Read-only everywhere else: this is the one writer.
  ;(entry as { record: VmRecord }).record = next
  return next
}

/** The record after the move, without making it. Throws `wrong_state` if the table does not allow it. */
export function nextRecord<M extends VmMove>(record: VmRecord, move: M, change: VmChanges[M]): Out<M> {
  if (!vmCan(move, record.state)) {
    throw new HostError('wrong_state', `${record.id} is ${record.state}, expected ${expectedState(move)}`)
  }
  // TypeScript cannot tie the state that was just checked to the move.
  return (NEXT[move] as (record: VmRecord, change: VmChanges[M]) => VmRecord)(record, change) as Out<M>
}

export const vmCan = (move: VmMove, state: VmState): boolean =>
  (VM_MOVES[move].from as readonly VmState[]).includes(state)

/** "running", or "paused or dead". */
export const expectedState = (move: VmMove): string => VM_MOVES[move].from.join(' or ')

const NEXT: { [M in VmMove]: (record: In<M>, change: VmChanges[M]) => Out<M> } = {
  createDone: ({ id, fence }, { ip, diskMib, vmm }) => ({
    state: 'running',
    ...{ id, fence, ip, diskMib, vmm },
    ...{ generation: null, signal: null, counts: null, flows: [], lastOperation: null },
  }),
  forkDone: ({ id, fence }, { diskMib, growPending, generation }) => ({
    state: 'paused',
    ...{ id, fence, ip: '', diskMib, growPending, generation, identityPending: true },
    ...{ counts: null, flows: [], lastOperation: null },
  }),
  pause: (record, { fence }) => ({ ...record, state: 'pausing', fence }),
  pauseDone: (record, { fence, response }) => ({
    ...toPaused(record, response.generation),
    lastOperation: { name: 'pause', fence, response },
  }),
  pauseFailed: (record) => ({ ...record, state: 'running' }),
  pauseRepeated: (record, { fence, response }) => ({
    ...record,
    fence,
    lastOperation: { name: 'pause', fence, response },
  }),
  pauseFound: (record, { generation }) => toPaused(record, generation),
  resume: (record, { fence }) => ({ state: 'resuming', id: record.id, fence, from: record }),
  resumeDone: ({ id, fence: newest, from }, { fence, ip, diskMib, growPending, vmm, response }) => ({
    state: 'running',
    // A delete may have raised the fence meanwhile.
    ...{ id, fence: newest, ip, diskMib, growPending, vmm, signal: null },
    // A boot from the disk alone continues no generation, and the newest one stays the newest.
    generation: response.generation ?? from.generation,
    ...{ counts: from.counts, flows: from.flows },
    lastOperation: { name: 'resume', fence, response },
  }),
  // The fence stays raised: the failed operation must not be repeated by an older request.
  resumeFailed: ({ fence, from }) => ({ ...from, fence }),
  die: (record, { reason }) => ({ ...record, state: 'dead', reason }),
  resize: (record, { diskMib }) => ({ ...record, diskMib, growPending: true }),
  resizeDone: (record) => ({ ...record, growPending: false }),
  resizeFailed: (record, { diskMib, growPending }) => ({ ...record, diskMib, growPending }),
  signal: (record, { signal }) => ({ ...record, signal }),
  usage: (record, change) =>
    record.state === 'resuming' ? { ...record, from: { ...record.from, ...change } } : { ...record, ...change },
  delete: (record, { fence }) => ({ ...record, fence }),
}

function toPaused(record: RunningVm | PausingVm | DeadVm, generation: number): PausedVm {
  const { id, fence, ip, diskMib, growPending = false, counts, flows, lastOperation } = record
  return {
    state: 'paused',
    ...{ id, fence, ip, diskMib, growPending, generation, counts, flows, lastOperation },
    identityPending: false,
  }
}
