import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Value } from 'typebox/value'
import { BANDWIDTH_UNMETERED, RECHARGE_MAX_BYTES, RechargeBody, remainingBytes } from './bandwidth.ts'

test('the remaining bytes are the quota minus the usage, at least zero, and unlimited without a quota', () => {
  assert.equal(remainingBytes(100, 40), 60)
  assert.equal(remainingBytes(100, 101), 0)
  assert.equal(remainingBytes(BANDWIDTH_UNMETERED, 40), BANDWIDTH_UNMETERED)
})

test('a recharge adds between one byte and 100 GiB', () => {
  assert.equal(RECHARGE_MAX_BYTES, 107_374_182_400)
  for (const add_bytes of [1, RECHARGE_MAX_BYTES]) assert.ok(Value.Check(RechargeBody, { add_bytes }))
  for (const add_bytes of [0, -1, 1.5, RECHARGE_MAX_BYTES + 1, null, '5']) {
    assert.ok(!Value.Check(RechargeBody, { add_bytes }))
  }
})
