import assert from 'node:assert/strict'
import { test } from 'node:test'
import { findKvmGroups } from './kvm-access.ts'

test('QEMU needs no group for a device that is open to everyone, and the group of one that is open to it', () => {
  assert.deepEqual(findKvmGroups({ mode: 0o20666, gid: 0 }), [])
  assert.deepEqual(findKvmGroups({ mode: 0o20666, gid: 104 }), [])
  assert.deepEqual(findKvmGroups({ mode: 0o20660, gid: 104 }), [104])
})

test('a device that is open to root only, or to the group of root, is not for QEMU', () => {
  assert.equal(findKvmGroups({ mode: 0o20600, gid: 0 }), undefined)
  assert.equal(findKvmGroups({ mode: 0o20600, gid: 104 }), undefined)
  assert.equal(findKvmGroups({ mode: 0o20640, gid: 104 }), undefined)
  assert.equal(findKvmGroups({ mode: 0o20660, gid: 0 }), undefined)
})
