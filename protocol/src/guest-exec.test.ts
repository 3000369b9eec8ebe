import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createGuestExecReader, guestExecFrame } from './guest-exec.ts'

const bytes = (text: string) => new TextEncoder().encode(text)
const text = (payload: Uint8Array) => new TextDecoder().decode(payload)

const joined = Buffer.concat([
  guestExecFrame('started', bytes('{"pid":7}')),
  guestExecFrame('stdout', bytes('hello')),
  guestExecFrame('stderr', bytes('')),
  guestExecFrame('exit', bytes('{"code":0,"timed_out":false}')),
])

test('frames are reassembled, however the stream is split', () => {
  for (let size = 1; size <= joined.length; size++) {
    const reader = createGuestExecReader()
    const seen: string[] = []

    for (let at = 0; at < joined.length; at += size) {
      for (const frame of reader.push(joined.subarray(at, at + size))) seen.push(`${frame.type} ${text(frame.payload)}`)
    }

    reader.end()
    assert.deepEqual(seen, ['started {"pid":7}', 'stdout hello', 'stderr ', 'exit {"code":0,"timed_out":false}'])
  }
})

test('a response that ends inside a frame is an error', () => {
  const reader = createGuestExecReader()
  reader.push(joined.subarray(0, joined.length - 1))

  assert.throws(() => reader.end(), /inside a frame/)
})

test('an invalid frame is refused before its payload is buffered', () => {
  assert.throws(() => createGuestExecReader().push(Uint8Array.of(1, 255, 255, 255, 255)), /invalid frame/)
  assert.throws(() => createGuestExecReader().push(Uint8Array.of(9, 0, 0, 0, 0)), /invalid frame/)
})
