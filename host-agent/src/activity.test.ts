import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createActivity } from './activity.ts'

test('a host is idle since its last operation ended, and not while one is under way', async () => {
  let now = 0
  const activity = createActivity(() => now)
  const [first, second] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  now = 5
  assert.equal(activity.idleMs(), 5)

  const both = [activity.run(() => first.promise), activity.run(() => second.promise)]
  now = 20
  assert.equal(activity.idleMs(), 0)
  first.resolve()
  await both[0]
  assert.equal(activity.idleMs(), 0)
  second.reject(new Error('it failed'))
  await assert.rejects(both[1]!)

  now = 27
  assert.equal(activity.idleMs(), 7)
})
