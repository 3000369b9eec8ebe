import assert from 'node:assert/strict'
import { test } from 'node:test'
import { serveRequest } from './serve-request.ts'

const handlers = {
  add: (one: number, other: number) => one + other,
  fail: (): null => {
    const cause = Object.assign(new Error('mount: EBUSY'), { code: 'EBUSY' })
    throw new Error('failed to create slot 7', { cause })
  },
}

test('the reply has the id of the request and the result of its handler', async () => {
  assert.deepEqual(await serveRequest(handlers, { id: 3, method: 'add', params: [1, 2] }), { id: 3, result: 3 })
})

test('an error is sent with the messages of its causes and the first code', async () => {
  assert.deepEqual(await serveRequest(handlers, { id: 4, method: 'fail', params: [] }), {
    id: 4,
    error: { message: 'failed to create slot 7: mount: EBUSY', code: 'EBUSY' },
  })
})
