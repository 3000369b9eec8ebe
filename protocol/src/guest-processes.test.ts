import assert from 'node:assert/strict'
import { test } from 'node:test'
import { guestFrame } from './guest-frames.ts'
import { createGuestConnectReader, GUEST_CONNECT_FRAME, parseGuestOutput } from './guest-processes.ts'

function output(seq: number, text: string): Uint8Array {
  const payload = new Uint8Array(8 + text.length)
  new DataView(payload.buffer).setBigUint64(0, BigInt(seq))
  payload.set(new TextEncoder().encode(text), 8)
  return payload
}

test('output has a sequence number and bytes, however the stream is split', () => {
  const stream = Buffer.concat([
    guestFrame(GUEST_CONNECT_FRAME.stdout, output(7, 'one')),
    guestFrame(GUEST_CONNECT_FRAME.pty, output(8, 'two')),
  ])
  for (let at = 0; at <= stream.length; at++) {
    const reader = createGuestConnectReader()

    const frames = [...reader.push(stream.subarray(0, at)), ...reader.push(stream.subarray(at))]

    reader.end()
    const seen = frames.map(({ type, payload }) => {
      const { seq, bytes } = parseGuestOutput(payload, undefined)
      return `${type} ${seq} ${new TextDecoder().decode(bytes)}`
    })
    assert.deepEqual(seen, ['stdout 7 one', 'pty 8 two'])
  }
})

test('gaps, repetitions, unsafe numbers and empty output are errors', () => {
  assert.equal(parseGuestOutput(output(3, 'x'), 2).seq, 3)
  assert.throws(() => parseGuestOutput(output(4, 'x'), 2), /output 4 after 2/)
  assert.throws(() => parseGuestOutput(output(2, 'x'), 2), /output 2 after 2/)
  assert.throws(() => parseGuestOutput(output(0, 'x'), undefined), /output 0/)
  assert.throws(() => parseGuestOutput(output(1, ''), undefined), /without bytes/)
  const beyond = new Uint8Array(9).fill(255)
  assert.throws(() => parseGuestOutput(beyond, undefined), /output/)
})

test('a frame type that only exec has is refused', () => {
  assert.throws(() => createGuestConnectReader().push(guestFrame(4, new Uint8Array())), /invalid frame/)
})
