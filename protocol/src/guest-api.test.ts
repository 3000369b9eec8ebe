import assert from 'node:assert/strict'
import { test } from 'node:test'
import { guestHello, guestHelloReply } from './guest-api.ts'

test('a hello has a fixed length, and W only at its start', () => {
  const nonce = '0123456789abcdef'.repeat(2)

  assert.equal(guestHello(nonce).length, 41)
  assert.equal(guestHelloReply(nonce).length, 44)
  assert.equal(guestHelloReply(nonce).lastIndexOf('W'), 0)
})
