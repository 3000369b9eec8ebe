/**
 * The record of one sandbox on this host: a union by state, so that each field exists in exactly the states in which it
 * has a meaning. move.ts has the moves between the states and is the only code that makes one record from another.
 *
 * Three states are stored: `running`, `paused` and `dead`. The others exist only while an operation is under way. If the
 * host agent dies during an operation, the operation has not happened: `pausing` is stored as `running`, `resuming`
 * as the state before it, and `creating` not at all.
 */
import {
  EgressDecision,
  EgressFlow,
  HostCounts,
  HostVmPaused,
  HostVmResumed,
  HostVmSignal,
  SandboxId,
} from '@warren/protocol'
import { type Static, type TSchema, Type } from 'typebox'
import { Value } from 'typebox/value'
import { VmmRecord } from '../vmm/record.ts'
import { convertUnversioned } from './record-v1.ts'

export const RECORD_VERSION = 2

const nullable = <Schema extends TSchema>(schema: Schema) => Type.Union([schema, Type.Null()])
const Generation = Type.Integer({ minimum: 1 })

/** The destinations that one VMM reached and those it was refused, read when it gave up its network slot (flows.ts). */
export const SavedFlows = Type.Object({
  vmm: Type.String(),
  at: Type.Number(),
  flows: Type.Array(EgressFlow),
  decisions: Type.Optional(Type.Array(EgressDecision)), // Absent in records of earlier versions.
})
export type SavedFlows = Static<typeof SavedFlows>

/** The last operation that ended, with its response: a repeated request gets the same one. */
const LastOperation = Type.Union([
  Type.Object({ name: Type.Literal('pause'), fence: Type.Integer(), response: HostVmPaused }),
  Type.Object({ name: Type.Literal('resume'), fence: Type.Integer(), response: HostVmResumed }),
])
export type LastOperation = Static<typeof LastOperation>

const stored = {
  id: SandboxId,
  fence: Type.Integer({ minimum: 0, description: 'Of the newest operation; a request with a lower one is refused.' }),
  ip: Type.String({ description: 'Empty for a fork that was never resumed.' }),
  diskMib: Type.Integer({
    minimum: 0,
    description: 'The disk is never larger: raised and stored before the disk grows (resize.ts).',
  }),
  growPending: Type.Optional(
    Type.Boolean({ description: 'The guest has not confirmed yet that its file system has the size of the disk.' }),
  ),
  counts: nullable(HostCounts),
  flows: Type.Array(SavedFlows),
  lastOperation: nullable(LastOperation),
}

const Running = Type.Object({
  state: Type.Literal('running'),
  ...stored,
  generation: nullable(Generation),
  vmm: VmmRecord,
  signal: nullable(HostVmSignal),
})

const Paused = Type.Object({
  state: Type.Literal('paused'),
  ...stored,
  generation: Generation,
  identityPending: Type.Boolean({
    description: 'Forked and never resumed: the guest still has the identity it copied.',
  }),
})

const Dead = Type.Object({
  state: Type.Literal('dead'),
  ...stored,
  generation: nullable(Generation),
  reason: Type.String(),
  vmm: VmmRecord,
  signal: nullable(HostVmSignal),
})

const StoredVm = Type.Union([Running, Paused, Dead])
export type StoredVm = Static<typeof StoredVm>

/** Only the identity is known before there is something to store. */
export type CreatingVm = { state: 'creating'; id: string; fence: number }
export type RunningVm = Static<typeof Running>
export type PausingVm = Omit<RunningVm, 'state'> & { state: 'pausing' }
export type PausedVm = Static<typeof Paused>
export type ResumingVm = { state: 'resuming'; id: string; fence: number; from: PausedVm | DeadVm }
export type DeadVm = Static<typeof Dead>

export type VmRecord = CreatingVm | RunningVm | PausingVm | PausedVm | ResumingVm | DeadVm
export type VmState = VmRecord['state']
export const VM_STATES = ['creating', 'running', 'pausing', 'paused', 'resuming', 'dead'] as const satisfies VmState[]

/** What a host agent would find if this one died now; undefined if nothing is on disk yet. */
export function toStored(record: VmRecord): StoredVm | undefined {
  switch (record.state) {
    case 'creating':
      return undefined
    case 'pausing':
      return { ...record, state: 'running' }
    case 'resuming':
      return { ...record.from, fence: record.fence }
    default:
      return record
  }
}

/** The VMM that the record names: a live one, or a dead one whose disk is still there. */
export function findVmmRecord(record: VmRecord): VmmRecord | undefined {
  const found = toStored(record)
  return found === undefined || found.state === 'paused' ? undefined : found.vmm
}

export const renderRecord = (record: StoredVm): string => JSON.stringify({ version: RECORD_VERSION, ...record })

/** Written by a newer host agent, which can still read it. */
export class NewerVersion extends Error {
  override name = 'NewerVersion'
}

/** Throws if the text is not a record of this sandbox in a version that is known here. */
export function parseRecord(text: string, id: string): StoredVm {
  const value = JSON.parse(text) as { version?: unknown } | null
  const { version, ...rest } = value ?? {}
  if (Number.isInteger(version) && Number(version) > RECORD_VERSION) {
    throw new NewerVersion(`record version ${version} is not supported, only ${RECORD_VERSION}`)
  }
  if (version !== undefined && version !== RECORD_VERSION) throw new Error(`record version ${version} is not supported`)
  const record = version === undefined ? convertUnversioned(rest) : rest
  if (!Value.Check(StoredVm, record)) {
    const [fault] = Value.Errors(StoredVm, record)
    throw new Error(`not a record: ${fault?.instancePath ?? ''} ${fault?.message ?? ''}`)
  }
  if (record.id !== id) throw new Error(`the record is of ${record.id}`)
  return record
}
