/**
 * Reads the records that were written before they had a version number.
 *
 * In that format every field but the first few was optional and the state was whatever was in memory at the time of
 * the write. A record in the middle of a pause was running; one in the middle of a resume was dead if it named a VMM
 * (`body`), and paused if it did not.
 */
import { EgressFlow, HostCounts, HostVmPaused, HostVmResumed, HostVmSignal } from '@warren/protocol'
import { type Static, Type } from 'typebox'
import { Value } from 'typebox/value'
import type { VmmRecord } from '../vmm/record.ts'

const Body = Type.Object({
  id: Type.String(),
  slot: Type.Integer(),
  uid: Type.Integer(),
  qemu: Type.Object({ pid: Type.Integer(), started: Type.String() }),
  base: Type.String(),
  baseId: Type.String(),
  over: Type.Enum(['base', 'zeros']),
  shape: Type.Object({ vcpu: Type.Integer(), mem_mib: Type.Integer() }),
  type: Type.String(),
  layers: Type.Array(Type.String()),
  from: Type.Optional(Type.Integer()),
  firstDisk: Type.Optional(Type.Integer()),
  covers: Type.Optional(Type.Integer()),
  released: Type.Optional(Type.Literal(true)),
  slotGone: Type.Optional(Type.Literal(true)),
})

const UnversionedRecord = Type.Object({
  id: Type.String(),
  fence: Type.Integer(),
  state: Type.Enum(['creating', 'running', 'pausing', 'paused', 'resuming', 'dead']),
  reason: Type.Optional(Type.String()),
  ip: Type.String(),
  disk_mib: Type.Integer(),
  generation: Type.Optional(Type.Integer()),
  unborn: Type.Optional(Type.Literal(true)),
  signal: Type.Optional(HostVmSignal),
  counts: Type.Optional(HostCounts),
  flows: Type.Optional(
    Type.Array(Type.Object({ body: Type.String(), at: Type.Number(), flows: Type.Array(EgressFlow) })),
  ),
  body: Type.Optional(Body),
  done: Type.Optional(Type.Object({ operation: Type.String(), fence: Type.Integer(), answer: Type.Object({}) })),
})
type UnversionedRecord = Static<typeof UnversionedRecord>

/** The same record in the current format. The caller checks it against the current schema. */
export function convertUnversioned(value: unknown): object {
  if (!Value.Check(UnversionedRecord, value)) {
    const [fault] = Value.Errors(UnversionedRecord, value)
    throw new Error(`not a record without a version: ${fault?.instancePath ?? ''} ${fault?.message ?? ''}`)
  }
  const { id, fence, ip, body } = value
  const common = {
    ...{ id, fence, ip, diskMib: value.disk_mib, counts: value.counts ?? null },
    flows: (value.flows ?? []).map(({ body: vmm, at, flows }) => ({ vmm, at, flows })),
    lastOperation: convertOperation(value.done),
  }
  const generation = value.generation ?? null
  if (!body || value.state === 'paused') {
    return { state: 'paused', ...common, generation, identityPending: value.unborn === true }
  }
  const more = { generation, vmm: convertVmm(body), signal: value.signal ?? null }
  if (value.state === 'dead' || value.state === 'resuming') {
    return { state: 'dead', ...common, ...more, reason: value.reason ?? 'its QEMU process exited' }
  }
  return { state: 'running', ...common, ...more }
}

function convertVmm(body: Static<typeof Body>): VmmRecord {
  const { id, slot, uid, qemu, base, baseId, shape } = body
  const firstUnsaved = body.firstDisk ?? 0
  return {
    ...{ id, slot, uid, qemu, base, baseId, memoryOver: body.over, shape, machineType: body.type },
    disk: {
      layers: body.layers,
      generation: body.from ?? null,
      firstUnsaved,
      // At least this one. The number was never stored, and an adopted VMM asks QEMU.
      active: firstUnsaved,
      standbyFreezes: body.covers ?? 0,
    },
    resources: body.released ? 'released' : body.slotGone ? 'slot-released' : 'held',
  }
}

/** A response that no longer has the right form is dropped: a repeated request is then answered from the state. */
function convertOperation(done: UnversionedRecord['done']): object | null {
  if (done?.operation === 'pause' && Value.Check(HostVmPaused, done.answer)) {
    return { name: 'pause', fence: done.fence, response: done.answer }
  }
  if (done?.operation === 'resume' && Value.Check(HostVmResumed, done.answer)) {
    return { name: 'resume', fence: done.fence, response: done.answer }
  }
  return null
}
