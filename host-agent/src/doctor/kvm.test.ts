import assert from 'node:assert/strict'
import { test } from 'node:test'
import { describeKvm } from './kvm.ts'

test('without KVM the check passes with the reason and a note about speed and security', () => {
  assert.deepEqual(describeKvm({ usable: false, reason: 'no /dev/kvm' }), {
    ok: true,
    detail: 'not usable: no /dev/kvm',
    note: 'software emulation (TCG): 10-20x slower, and not a security boundary between users',
  })
})

test('with KVM there is no note', () => {
  assert.deepEqual(describeKvm({ usable: true }), { ok: true, detail: 'runs a 64-bit guest' })
})
