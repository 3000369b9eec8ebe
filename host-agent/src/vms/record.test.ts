import assert from 'node:assert/strict'
import { test } from 'node:test'
import { findVmmRecord, parseRecord, renderRecord, toStored, VM_STATES } from './record.ts'
import { DEAD, EXAMPLES, PAUSED, RUNNING, SANDBOX, VMM } from './testing.ts'

test('every stored state is read back as it was written, with its version', () => {
  for (const record of [RUNNING, PAUSED, DEAD]) {
    const text = renderRecord(record)

    assert.equal(JSON.parse(text).version, 2)
    assert.deepEqual(parseRecord(text, SANDBOX), record)
  }
})

test('an operation under way is stored as the state before it', () => {
  assert.deepEqual(
    VM_STATES.map((state) => toStored(EXAMPLES[state])?.state),
    [undefined, 'running', 'running', 'paused', 'paused', 'dead'],
  )
  assert.deepEqual(toStored({ state: 'resuming', id: SANDBOX, fence: 9, from: DEAD }), { ...DEAD, fence: 9 })
})

test('a record names its VMM while it runs and after it died, also during an operation', () => {
  assert.deepEqual(
    VM_STATES.map((state) => findVmmRecord(EXAMPLES[state])?.id),
    [undefined, VMM.id, VMM.id, undefined, undefined, VMM.id],
  )
  assert.equal(findVmmRecord({ state: 'resuming', id: SANDBOX, fence: 9, from: DEAD }), DEAD.vmm)
})

test('what is not a record of this sandbox in a known version is refused', () => {
  const change = (changes: object) => JSON.stringify({ version: 2, ...RUNNING, ...changes })

  assert.throws(() => parseRecord('', SANDBOX))
  assert.throws(() => parseRecord('{"id":"sb-', SANDBOX))
  assert.throws(() => parseRecord('null', SANDBOX), /not a record/)
  assert.throws(() => parseRecord('[]', SANDBOX), /not a record/)
  assert.throws(() => parseRecord(change({ version: 3 }), SANDBOX), /version 3 is not supported/)
  assert.throws(() => parseRecord(change({ state: 'pausing' }), SANDBOX), /not a record/)
  assert.throws(() => parseRecord(change({ vmm: undefined }), SANDBOX), /not a record/)
  assert.throws(() => parseRecord(change({ vmm: { ...VMM, slot: '3' } }), SANDBOX), /not a record/)
  assert.throws(() => parseRecord(renderRecord(RUNNING), `sb-${'1'.repeat(26)}`), /the record is of/)
})

/** Literal records of the format before versions, as host agents wrote them. */
const OLD_BODY =
  '{"id":"0123456789abcdef","slot":3,"uid":1610612739,"qemu":{"pid":4711,"started":"123456"},"base":"bbbb","baseId":"6f1e","over":"base","shape":{"vcpu":1,"mem_mib":256},"type":"pc-q35-7.2","layers":[]}'
const OLD_STANDBY_BODY =
  '{"id":"0123456789abcdef","slot":3,"uid":1610612739,"qemu":{"pid":4711,"started":"123456"},"base":"bbbb","baseId":"6f1e","over":"zeros","shape":{"vcpu":1,"mem_mib":256},"type":"pc-q35-7.2","layers":["merged-1","aa-d0"],"from":3,"firstDisk":2,"covers":2}'

test('an unversioned record of a running sandbox is converted', () => {
  const text = `{"id":"${SANDBOX}","fence":1,"state":"running","ip":"10.0.0.7","disk_mib":10240,"body":${OLD_BODY}}`

  assert.deepEqual(parseRecord(text, SANDBOX), {
    state: 'running',
    ...{ id: SANDBOX, fence: 1, ip: '10.0.0.7', diskMib: 10_240, generation: null, signal: null },
    ...{ counts: null, flows: [], lastOperation: null },
    vmm: {
      ...{ id: '0123456789abcdef', slot: 3, uid: 1_610_612_739, qemu: { pid: 4711, started: '123456' } },
      ...{ base: 'bbbb', baseId: '6f1e', memoryOver: 'base', shape: { vcpu: 1, mem_mib: 256 } },
      machineType: 'pc-q35-7.2',
      disk: { layers: [], generation: null, firstUnsaved: 0, active: 0, standbyFreezes: 0 },
      resources: 'held',
    },
  })
})

test('an unversioned record of a sandbox resumed from standby has the disk chain, the flows and the last response', () => {
  const text = `{"id":"${SANDBOX}","fence":7,"state":"running","ip":"10.0.0.7","disk_mib":10240,"generation":3,"counts":{"used_bytes":10,"ingress_bytes":20},"flows":[{"body":"0123456789abcdef","at":1700000000000,"flows":[{"destination":"example.com","protocol":"tcp","port":443,"count":2}]}],"signal":{"action":"pause"},"body":${OLD_STANDBY_BODY},"done":{"operation":"resume","fence":7,"answer":{"generation":3,"saved_at":"2026-01-01T00:00:00.000Z","took_ms":4.2,"how":"standby"}}}`

  const record = parseRecord(text, SANDBOX)

  assert.ok(record.state === 'running')
  assert.deepEqual(record.vmm.disk, {
    layers: ['merged-1', 'aa-d0'],
    ...{ generation: 3, firstUnsaved: 2, active: 2, standbyFreezes: 2 },
  })
  assert.equal(record.vmm.memoryOver, 'zeros')
  assert.deepEqual(record.signal, { action: 'pause' })
  assert.equal(record.flows[0]?.vmm, '0123456789abcdef')
  assert.equal(record.lastOperation?.name, 'resume')
})

test('an unversioned record of a paused sandbox is converted', () => {
  const text = `{"id":"${SANDBOX}","fence":5,"state":"paused","ip":"10.0.0.7","disk_mib":10240,"generation":2,"counts":{"used_bytes":10,"ingress_bytes":20},"done":{"operation":"pause","fence":5,"answer":{"generation":2,"took_ms":81.4,"dirty_bytes":4096,"written_bytes":8192}}}`

  assert.deepEqual(parseRecord(text, SANDBOX), {
    state: 'paused',
    ...{ id: SANDBOX, fence: 5, ip: '10.0.0.7', diskMib: 10_240, generation: 2, identityPending: false },
    ...{ counts: { used_bytes: 10, ingress_bytes: 20 }, flows: [] },
    lastOperation: {
      ...{ name: 'pause', fence: 5 },
      response: { generation: 2, took_ms: 81.4, dirty_bytes: 4096, written_bytes: 8192 },
    },
  })
})

test('an unversioned record of a dead sandbox has its reason and the VMM whose disk is left', () => {
  const body = OLD_BODY.replace(/}$/, ',"slotGone":true,"released":true}')
  const text = `{"id":"${SANDBOX}","fence":1,"state":"dead","ip":"10.0.0.7","disk_mib":10240,"body":${body},"reason":"its QEMU ended: it said nothing"}`

  const record = parseRecord(text, SANDBOX)

  assert.ok(record.state === 'dead')
  assert.deepEqual([record.reason, record.generation], ['its QEMU ended: it said nothing', null])
  assert.equal(record.vmm.resources, 'released')
})

test('an unversioned record of a fork that was never resumed waits for its identity', () => {
  const text = `{"id":"${SANDBOX}","fence":1,"state":"paused","ip":"","disk_mib":10240,"generation":1,"unborn":true}`

  const record = parseRecord(text, SANDBOX)

  assert.ok(record.state === 'paused')
  assert.deepEqual([record.identityPending, record.generation, record.ip], [true, 1, ''])
})

test('an unversioned record written during an operation is the state before it', () => {
  const head = `{"id":"${SANDBOX}","fence":1,"ip":"10.0.0.7","disk_mib":10240,"generation":2`

  assert.equal(parseRecord(`${head},"state":"pausing","body":${OLD_BODY}}`, SANDBOX).state, 'running')
  assert.equal(parseRecord(`${head},"state":"resuming"}`, SANDBOX).state, 'paused')
  assert.equal(parseRecord(`${head},"state":"resuming","body":${OLD_BODY}}`, SANDBOX).state, 'dead')
})

test('a stored response that no longer has the right form is dropped, not the record', () => {
  const text = `{"id":"${SANDBOX}","fence":5,"state":"paused","ip":"","disk_mib":1,"generation":2,"done":{"operation":"pause","fence":5,"answer":{}}}`

  assert.equal(parseRecord(text, SANDBOX).lastOperation, null)
})
