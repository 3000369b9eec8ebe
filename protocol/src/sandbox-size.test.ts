import assert from 'node:assert/strict'
import { test } from 'node:test'
import { checkResize } from './sandbox-size.ts'

test('a disk grows to one of the listed sizes', () => {
  assert.equal(checkResize(20_480, 10_240), undefined)
  assert.equal(checkResize(61_440, 12_345), undefined)
})

test('a disk does not shrink, keep its size or get an unlisted size', () => {
  assert.equal(checkResize(10_240, 20_480), 'must be more than the current 20480')
  assert.equal(checkResize(20_480, 20_480), 'must be more than the current 20480')
  assert.match(checkResize(15_000, 10_240) ?? '', /one of 10240, 20480/)
})
