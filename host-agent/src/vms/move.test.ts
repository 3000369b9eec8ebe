import assert from 'node:assert/strict'
import { test } from 'node:test'
import { moveVm, nextRecord, VM_MOVES, type VmChanges, type VmMove, vmCan } from './move.ts'
import { VM_STATES, type VmRecord } from './record.ts'
import { DEAD, EXAMPLES, PAUSED, RUNNING, VMM } from './testing.ts'

const paused = { generation: 3, took_ms: 1, dirty_bytes: 2, written_bytes: 3 }
const resumed = { generation: 2, took_ms: 1, how: 'restore' as const }
const other = { ...VMM, id: 'fedcba9876543210' }

const CHANGES: VmChanges = {
  createDone: { ip: '10.0.0.8', diskMib: 20_480, vmm: other },
  forkDone: { diskMib: 20_480, growPending: true, generation: 1 },
  pause: { fence: 5 },
  pauseDone: { fence: 5, response: paused },
  pauseFailed: {},
  pauseRepeated: { fence: 6, response: paused },
  pauseFound: { generation: 3 },
  resume: { fence: 5 },
  resumeDone: { fence: 5, ip: '10.0.0.8', diskMib: 20_480, growPending: false, vmm: other, response: resumed },
  resumeFailed: {},
  die: { reason: 'killed' },
  resize: { diskMib: 20_480 },
  resizeDone: {},
  resizeFailed: { diskMib: 10_240, growPending: false },
  signal: { signal: { action: 'pause' } },
  usage: { counts: { used_bytes: 7, ingress_bytes: 8 } },
  delete: { fence: 9 },
}
const MOVES = Object.keys(VM_MOVES) as VmMove[]

test('every move is possible in exactly the states of the table and leads to a state of the table', () => {
  for (const move of MOVES) {
    for (const state of VM_STATES) {
      const record: VmRecord = EXAMPLES[state]
      const { to } = VM_MOVES[move]
      if (!vmCan(move, state)) {
        assert.throws(() => nextRecord(record, move, CHANGES[move]), { code: 'wrong_state' }, `${move} in ${state}`)
        continue
      }
      const next: VmRecord = nextRecord(record, move, CHANGES[move])
      const allowed: readonly string[] = to === 'same' ? [state] : to
      assert.ok(allowed.includes(next.state), `${move} in ${state} led to ${next.state}`)
      assert.equal(next.id, record.id)
    }
  }
})

test('every state but creating is reached by a move, and every state can be left', () => {
  const changing = Object.values(VM_MOVES).filter((move) => move.to !== 'same')
  const reached = new Set(changing.flatMap((move) => move.to as readonly string[]))
  const left = new Set(changing.flatMap((move) => move.from as readonly string[]))

  assert.deepEqual(
    VM_STATES.filter((state) => !reached.has(state)),
    ['creating'],
  )
  assert.deepEqual([...left].sort(), [...VM_STATES].sort())
})

test('a refused move changes nothing and names the state it expected', () => {
  const entry = { record: PAUSED }

  assert.throws(() => moveVm(entry, 'pause', { fence: 5 }), /is paused, expected running/)
  assert.throws(() => moveVm({ record: RUNNING }, 'resume', { fence: 5 }), /is running, expected paused or dead/)
  assert.equal(entry.record, PAUSED)
})

test('a created sandbox runs with nothing saved yet', () => {
  const entry = { record: EXAMPLES.creating as VmRecord }

  const record = moveVm(entry, 'createDone', CHANGES.createDone)

  assert.equal(entry.record, record)
  assert.deepEqual([record.state, record.generation, record.ip, record.vmm], ['running', null, '10.0.0.8', other])
})

test('a fork is paused and waits for an identity', () => {
  const record = nextRecord(EXAMPLES.creating, 'forkDone', CHANGES.forkDone)

  assert.deepEqual([record.identityPending, record.generation, record.ip], [true, 1, ''])
})

test('a pause that ends drops the VMM and the signal, and stores its response', () => {
  const entry = { record: { ...RUNNING, signal: { action: 'pause' } } as VmRecord }

  moveVm(entry, 'pause', { fence: 5 })
  const record = moveVm(entry, 'pauseDone', CHANGES.pauseDone)

  assert.ok(!('vmm' in record) && !('signal' in record))
  assert.deepEqual([record.fence, record.generation], [5, 3])
  assert.deepEqual(record.lastOperation, { name: 'pause', fence: 5, response: paused })
})

test('a pause that fails leaves the sandbox running, with the higher fence', () => {
  const entry = { record: RUNNING as VmRecord }

  moveVm(entry, 'pause', { fence: 5 })
  const record = moveVm(entry, 'pauseFailed', {})

  assert.deepEqual(record, { ...RUNNING, fence: 5 })
})

test('a sandbox whose VMM exited after its generation was committed is paused', () => {
  assert.equal(nextRecord(DEAD, 'pauseDone', CHANGES.pauseDone).state, 'paused')
})

test('a resume that fails leads back to where it came from, with the higher fence', () => {
  for (const before of [PAUSED, DEAD]) {
    const entry = { record: before as VmRecord }

    moveVm(entry, 'resume', { fence: 5 })
    const record = moveVm(entry, 'resumeFailed', {})

    assert.deepEqual(record, { ...before, fence: 5 })
  }
})

test('a resumed sandbox has a new VMM and no reason, and a boot from its disk does not forget the newest generation', () => {
  const entry = { record: DEAD as VmRecord }
  const response = { took_ms: 1, how: 'boot' as const }

  moveVm(entry, 'resume', { fence: 5 })
  const record = moveVm(entry, 'resumeDone', { ...CHANGES.resumeDone, response })

  assert.ok(!('reason' in record))
  assert.deepEqual([record.vmm, record.ip, record.generation], [other, '10.0.0.8', DEAD.generation])
  assert.deepEqual(record.lastOperation, { name: 'resume', fence: 5, response })
})

test('a delete during a resume is not undone by the end of the resume', () => {
  const entry = { record: PAUSED as VmRecord }

  moveVm(entry, 'resume', { fence: 5 })
  moveVm(entry, 'delete', { fence: 9 })
  const record = moveVm(entry, 'resumeDone', CHANGES.resumeDone)

  assert.deepEqual([record.fence, record.lastOperation?.fence], [9, 5])
})

test('usage that arrives during a resume survives it, whether it succeeds or fails', () => {
  for (const end of ['resumeDone', 'resumeFailed'] as const) {
    const entry = { record: PAUSED as VmRecord }

    moveVm(entry, 'resume', { fence: 5 })
    moveVm(entry, 'usage', CHANGES.usage)
    const record = moveVm(entry, end, CHANGES[end])

    assert.deepEqual(record.counts, CHANGES.usage.counts)
  }
})

test('a disk has its new size before it grows, and waits for its guest until that has confirmed, also over a pause', () => {
  const entry = { record: RUNNING as VmRecord }

  const begun = moveVm(entry, 'resize', { diskMib: 20_480 })
  const dead = nextRecord(begun, 'die', CHANGES.die)
  moveVm(entry, 'pause', { fence: 5 })
  const saved = moveVm(entry, 'pauseDone', CHANGES.pauseDone)

  for (const record of [begun, dead, saved]) assert.deepEqual([record.diskMib, record.growPending], [20_480, true])
  assert.equal(nextRecord(begun, 'resizeDone', {}).growPending, false)
  assert.equal(nextRecord(begun, 'resizeFailed', CHANGES.resizeFailed).diskMib, 10_240)
})
