import assert from 'node:assert/strict'
import { test } from 'node:test'
import { octets } from './der.ts'

test('the length takes one, two or three bytes, and a longer value is refused', () => {
  const header = (size: number) =>
    octets(Buffer.alloc(size))
      .subarray(1, -size || undefined)
      .toString('hex')

  assert.deepEqual([header(0x7f), header(0x80), header(0xff), header(0x100)], ['7f', '8180', '81ff', '820100'])
  assert.equal(header(0xffff), '82ffff')
  assert.throws(() => octets(Buffer.alloc(0x10000)), RangeError)
})
