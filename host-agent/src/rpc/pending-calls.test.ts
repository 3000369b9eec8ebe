import assert from 'node:assert/strict'
import { test } from 'node:test'
import { PendingCalls } from './pending-calls.ts'

test('a reply settles the call with its id, in any order', async () => {
  const pending = new PendingCalls()
  const [first, second] = [pending.add(), pending.add()]

  pending.settle({ id: second.id, result: 'second' })
  pending.settle({ id: first.id, result: 'first' })

  assert.deepEqual(await Promise.all([first.reply, second.reply]), ['first', 'second'])
})

test('an error reply rejects with its message and code', async () => {
  const pending = new PendingCalls()
  const { id, reply } = pending.add()

  pending.settle({ id, error: { message: 'no such slot', code: 'ENOENT' } })

  await assert.rejects(reply, { message: 'no such slot', code: 'ENOENT' })
})

test('a reply to a call that is not pending is ignored', async () => {
  const pending = new PendingCalls()
  const { id, reply } = pending.add()
  pending.reject(id, new Error('timed out'))

  pending.settle({ id, result: 'late' })

  await assert.rejects(reply, /timed out/)
})

test('when the other side exits, all pending calls are rejected, and later ones are not affected', async () => {
  const pending = new PendingCalls()
  const calls = [pending.add(), pending.add()]

  pending.rejectAll(new Error('exited'))
  const later = pending.add()
  pending.settle({ id: later.id, result: 1 })

  for (const { reply } of calls) await assert.rejects(reply, /exited/)
  assert.equal(await later.reply, 1)
})
