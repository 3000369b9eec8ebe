import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createLimiter } from './limiter.ts'

test('no more are inside than the gate is wide, and they enter in order', async () => {
  const gate = createLimiter(2)
  const order: number[] = []
  let inside = 0
  let most = 0

  await Promise.all(
    Array.from({ length: 6 }, (_, i) =>
      gate(async () => {
        order.push(i)
        most = Math.max(most, ++inside)
        await new Promise((resolve) => setImmediate(resolve))
        inside--
      }),
    ),
  )

  assert.deepEqual([most, order], [2, [0, 1, 2, 3, 4, 5]])
})

test('work that fails lets the next one in', async () => {
  const gate = createLimiter(1)

  await assert.rejects(
    gate(async () => {
      throw new Error('no')
    }),
  )

  assert.equal(await gate(async () => 7), 7)
})

test('one that gave up while it waited does not hold up those behind it', async () => {
  const gate = createLimiter(1)
  const first = Promise.withResolvers<void>()
  const abort = new AbortController()
  const running = gate(() => first.promise)
  const given = gate(async () => 'given up', abort.signal)
  const patient = gate(async () => 'patient')

  abort.abort(new Error('gone'))
  first.resolve()

  await running
  await assert.rejects(given, /gone/)
  assert.equal(await patient, 'patient')
})
