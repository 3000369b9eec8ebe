import assert from 'node:assert/strict'
import { test } from 'node:test'
import { withTimeout } from './timeout.ts'

test('work that finishes in time returns its value', async () => {
  assert.equal(await withTimeout(1_000, Promise.resolve(7), 'the test'), 7)
})

test('work that takes too long is an error that names it', async () => {
  await assert.rejects(withTimeout(10, new Promise(() => {}), 'the test'), /the test took more than 10 ms/)
})
