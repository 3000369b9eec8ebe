import assert from 'node:assert/strict'
import { test } from 'node:test'
import { judgeKvm } from './kvm.ts'

test('without KVM Warren works, and says at what price and why', () => {
  assert.deepEqual(judgeKvm({ usable: false, reason: 'no /dev/kvm' }), {
    ok: true,
    detail: 'not usable: no /dev/kvm',
    note: 'software emulation (TCG): 10-20x slower',
  })
})

test('with KVM there is nothing to note', () => {
  assert.deepEqual(judgeKvm({ usable: true }), { ok: true, detail: 'runs a 64-bit guest' })
})
