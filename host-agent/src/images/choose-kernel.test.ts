import assert from 'node:assert/strict'
import { test } from 'node:test'
import { chooseKernel, isDefective } from './choose-kernel.ts'

const DEFECTIVE = '6.1.0-55-cloud-amd64'

test('the kernel that Debian recommends is used', () => {
  const available = ['6.1.0-54-cloud-amd64', '6.1.0-56-cloud-amd64', '6.1.0-57-cloud-amd64']
  assert.equal(chooseKernel('6.1.0-56-cloud-amd64', available), '6.1.0-56-cloud-amd64')
})

test('a kernel with a known defect is replaced by the newest one before it', () => {
  const available = [
    ...['6.1.0-9-cloud-amd64', '6.1.0-54-cloud-amd64', DEFECTIVE, '6.1.0-53-cloud-amd64'],
    ...['6.1.0-54-amd64', '6.1.0-54-rt-amd64', '6.12.0-54-cloud-amd64', 'cloud-amd64', '6.1.0-54-cloud-amd64-dbg'],
  ]
  assert.ok(isDefective(DEFECTIVE))
  assert.equal(chooseKernel(DEFECTIVE, available), '6.1.0-54-cloud-amd64')
})

test('the error says what is wrong when there is no other kernel', () => {
  assert.throws(() => chooseKernel(DEFECTIVE, [DEFECTIVE]), /ext4/)
})
