import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createLimiter } from './limiter.ts'

test('no more work runs at once than the limit, and it starts in order', async () => {
  const limiter = createLimiter(2)
  const order: number[] = []
  let running = 0
  let most = 0

  await Promise.all(
    Array.from({ length: 6 }, (_, i) =>
      limiter(async () => {
        order.push(i)
        most = Math.max(most, ++running)
        await new Promise((resolve) => setImmediate(resolve))
        running--
      }),
    ),
  )

  assert.deepEqual([most, order], [2, [0, 1, 2, 3, 4, 5]])
})

test('work that fails frees its place', async () => {
  const limiter = createLimiter(1)

  await assert.rejects(
    limiter(async () => {
      throw new Error('no')
    }),
  )

  assert.equal(await limiter(async () => 7), 7)
})

test('work that is aborted while it waits fails at once and does not block the work behind it', async () => {
  const limiter = createLimiter(1)
  const first = Promise.withResolvers<void>()
  const abort = new AbortController()
  const running = limiter(() => first.promise)
  const aborted = limiter(async () => 'aborted', abort.signal)
  const next = limiter(async () => 'next', new AbortController().signal)

  abort.abort(new Error('gone'))

  await assert.rejects(aborted, /gone/)
  first.resolve()
  await running
  assert.equal(await next, 'next')
  await assert.rejects(
    limiter(async () => 'late', abort.signal),
    /gone/,
  )
  assert.equal(await limiter(async () => 'free again'), 'free again')
})
