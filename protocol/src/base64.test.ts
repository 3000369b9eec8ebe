import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { decodeBase64, encodeBase64 } from './base64.ts'

test('encoding equals that of Buffer, and decoding restores the bytes', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 300 }), (bytes) => {
      const text = encodeBase64(bytes)

      assert.equal(text, Buffer.from(bytes).toString('base64'))
      assert.deepEqual(decodeBase64(text), bytes)
    }),
  )
})

test('long data is encoded without exhausting the stack', () => {
  const bytes = new Uint8Array(1_000_000).fill(7)

  assert.equal(decodeBase64(encodeBase64(bytes))?.length, bytes.length)
})

test('missing padding is accepted, other alphabets are not', () => {
  assert.deepEqual(decodeBase64('aGk'), Uint8Array.of(0x68, 0x69))
  assert.equal(decodeBase64('_-8='), undefined)
  assert.equal(decodeBase64('a'), undefined)
})
