import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isAtLeast } from './version.ts'

test('the parts of a version are compared as numbers', () => {
  assert.equal(isAtLeast('10.0.13', '7.2'), true)
  assert.equal(isAtLeast('7.2', '10.0'), false)
})

test('a version is at least itself, with or without further parts', () => {
  assert.equal(isAtLeast('2.38', '2.38'), true)
  assert.equal(isAtLeast('2.38.1', '2.38'), true)
  assert.equal(isAtLeast('2.38', '2.38.0'), true)
  assert.equal(isAtLeast('2.38', '2.38.1'), false)
  assert.equal(isAtLeast('2.37.9', '2.38'), false)
})
