import assert from 'node:assert/strict'
import { test } from 'node:test'
import { waitForAll } from './wait-for-all.ts'

test('all results are returned in order', async () => {
  const [number, text] = await waitForAll([Promise.resolve(1), 'two'] as const)

  assert.deepEqual([number, text], [1, 'two'])
})

test('a failure is reported only when the others have ended', async () => {
  const slow = Promise.withResolvers<void>()
  let rejected: unknown
  const all = waitForAll([Promise.reject(new Error('first')), slow.promise]).catch((error) => {
    rejected = error
  })
  await new Promise((resolve) => setImmediate(resolve))
  const early = rejected

  slow.resolve()
  await all

  assert.equal(early, undefined)
  assert.match(String(rejected), /first/)
})
