import assert from 'node:assert/strict'
import { test } from 'node:test'
import { checkFence, Entries, findPreviousResponse, getLive, runOperation } from './entries.ts'
import { moveVm } from './move.ts'
import { EXAMPLES, PAUSED, RUNNING, SANDBOX } from './testing.ts'

const response = { generation: 2, took_ms: 1, dirty_bytes: 2, written_bytes: 3 }

test('a request with a lower fence is refused', () => {
  assert.throws(() => checkFence(RUNNING, RUNNING.fence - 1), { code: 'fence_lost' })
  checkFence(RUNNING, RUNNING.fence)
  checkFence(RUNNING, RUNNING.fence + 1)
})

test('a sandbox can be created once, and not again by a request older than its delete', () => {
  const entries = new Entries()
  entries.checkNew({ id: SANDBOX, fence: 1 })
  entries.add(EXAMPLES.creating)

  assert.throws(() => entries.checkNew({ id: SANDBOX, fence: 9 }), { code: 'fence_lost' })

  entries.delete(SANDBOX)
  entries.addTombstone(SANDBOX, 5)

  assert.throws(() => entries.checkNew({ id: SANDBOX, fence: 5 }), { code: 'fence_lost' })
  entries.checkNew({ id: SANDBOX, fence: 6 })
})

test('a sandbox that is not here is found by no lookup', () => {
  const entries = new Entries()

  assert.equal(entries.find(SANDBOX), undefined)
  assert.throws(() => entries.get(SANDBOX), { code: 'not_found' })
})

test('a repeated request waits for the operation under way, and any other is refused', async () => {
  const entry = new Entries().add(RUNNING)
  const saved = Promise.withResolvers<typeof response>()
  moveVm(entry, 'pause', { fence: 5 })
  const first = runOperation(entry, 'pause', 5, () => saved.promise)

  const second = findPreviousResponse(entry, 'pause', 5)
  assert.throws(() => findPreviousResponse(entry, 'pause', 6), /pausing: pause is under way/)
  assert.throws(() => findPreviousResponse(entry, 'resume', 5), { code: 'wrong_state' })
  saved.resolve(response)

  assert.deepEqual([await first, await second], [response, response])
  assert.equal(entry.operation, undefined)
})

test('a request that is repeated after its operation ended gets the stored response', async () => {
  const entry = new Entries().add({ ...PAUSED, lastOperation: { name: 'pause', fence: 4, response } })

  assert.deepEqual(await findPreviousResponse(entry, 'pause', 4), response)
  assert.equal(findPreviousResponse(entry, 'pause', 5), undefined)
  assert.equal(findPreviousResponse(entry, 'resume', 4), undefined)
})

test('an operation that fails makes way for the next one', async () => {
  const entry = new Entries().add(PAUSED)

  await assert.rejects(
    runOperation(entry, 'resume', 5, () => Promise.reject(new Error('no'))),
    /no/,
  )

  assert.equal(entry.operation, undefined)
})

test('only a running sandbox has a live VMM', () => {
  const entry = new Entries().add(PAUSED)

  assert.throws(() => getLive(entry), /is paused, expected running/)
})
