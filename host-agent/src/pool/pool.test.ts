import assert from 'node:assert/strict'
import { test } from 'node:test'
import { findPeak } from './pool.ts'

test('the demand is the most requests within ten seconds', () => {
  assert.equal(findPeak([]), 0)
  assert.equal(findPeak([0]), 1)
  assert.equal(findPeak([0, 20_000, 40_000]), 1)
  assert.equal(findPeak([0, 9_000, 18_000, 19_000]), 3)
  assert.equal(findPeak([0, 10_000]), 2)
  assert.equal(findPeak([0, 10_001]), 1)
})
