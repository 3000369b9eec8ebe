import assert from 'node:assert/strict'
import { test } from 'node:test'
import { scaleLimit } from './slowness.ts'
import { until } from './until.ts'

test('the first truthy value is returned', async () => {
  let calls = 0

  const value = await until(() => (++calls < 3 ? undefined : `call ${calls}`))

  assert.equal(value, 'call 3')
})

test('an asynchronous condition is awaited', async () => {
  assert.equal(await until(async () => true), true)
})

test('a condition that never holds fails by its name after the limit', async () => {
  await assert.rejects(
    until(() => false, 'the server listens', 30),
    { message: `timed out after ${scaleLimit(30)} ms waiting until the server listens` },
  )
})

test('a condition that never settles fails in the same way', async () => {
  await assert.rejects(
    until(() => new Promise(() => {}), 'the server answers', 30),
    { message: `timed out after ${scaleLimit(30)} ms waiting until the server answers` },
  )
})

test('without a name the message quotes the condition', async () => {
  await assert.rejects(
    until(() => 1 > 2, undefined, 0),
    /waiting until \(\) => 1 > 2$/,
  )
})

test('an error of the condition is not retried', async () => {
  const broken = () => {
    throw new Error('broken')
  }

  await assert.rejects(until(broken), { message: 'broken' })
})
