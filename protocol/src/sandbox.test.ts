import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  expectedStatus,
  isTerminal,
  SANDBOX_MOVES,
  SANDBOX_STATUSES,
  sandboxCan,
  TRANSITIONAL_STATUSES,
} from './index.ts'

test('every status but creating and forking, in which a row is born, can be reached by a move', () => {
  const reachable = new Set(Object.values(SANDBOX_MOVES).map((move) => move.to))

  const unreachable = SANDBOX_STATUSES.filter((status) => !reachable.has(status as never))

  assert.deepEqual(unreachable, ['creating', 'forking'])
})

test('nothing leaves destroyed, and only a delete leaves failed', () => {
  const leaving = (status: string) =>
    Object.entries(SANDBOX_MOVES)
      .filter(([, move]) => (move.from as readonly string[]).includes(status))
      .map(([name]) => name)

  assert.deepEqual(leaving('destroyed'), [])
  assert.deepEqual(leaving('failed'), ['discard'])
})

test('delete is allowed in every state that is not terminal and not already destroying', () => {
  for (const status of SANDBOX_STATUSES) {
    assert.equal(sandboxCan('destroy', status), !isTerminal(status) && status !== 'destroying', status)
  }
})

test('every transitional status has a move that ends it with the fence of its operation', () => {
  for (const status of TRANSITIONAL_STATUSES) {
    const ends = Object.values(SANDBOX_MOVES).filter(
      (move) => move.fence === 'ends' && (move.from as readonly string[]).includes(status),
    )
    assert.ok(ends.length > 0, status)
  }
})

test('a refusal names what was expected', () => {
  assert.equal(expectedStatus('resume'), 'paused or error')
})
