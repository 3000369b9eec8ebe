import assert from 'node:assert/strict'
import { test } from 'node:test'
import { guestHello, guestHelloAnswer } from './guest-api.ts'

test('a greeting has a fixed length, and W only at its front', () => {
  const nonce = '0123456789abcdef'.repeat(2)

  assert.equal(guestHello(nonce).length, 41)
  assert.equal(guestHelloAnswer(nonce).length, 44)
  assert.equal(guestHelloAnswer(nonce).lastIndexOf('W'), 0)
})
