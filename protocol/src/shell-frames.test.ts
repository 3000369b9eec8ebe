import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import {
  encodeShellFrame,
  SHELL_PAYLOAD_MAX_BYTES,
  type ShellFrame,
  ShellFrameDecoder,
  ShellFrameError,
} from './shell-frames.ts'

/** The decoded frames, followed by the error message if decoding failed. */
function decode(pieces: readonly Uint8Array[]): unknown[] {
  const decoder = new ShellFrameDecoder()
  const out: unknown[] = []
  try {
    for (const piece of pieces) for (const frame of decoder.push(piece)) out.push(frame)
  } catch (error) {
    assert.ok(error instanceof ShellFrameError)
    out.push(error.message)
  }
  return out
}

function split(bytes: Uint8Array, cuts: readonly number[]): Uint8Array[] {
  const ends = [...cuts.map((cut) => cut % (bytes.length + 1)).sort((a, b) => a - b), bytes.length]
  return ends.map((end, i) => bytes.subarray(ends[i - 1] ?? 0, end))
}

const side = fc.nat(65_535)
const anyFrame: fc.Arbitrary<ShellFrame> = fc.oneof(
  fc.uint8Array({ maxLength: 50 }).map((data) => ({ type: 'input' as const, data })),
  fc.tuple(side, side).map(([rows, cols]) => ({ type: 'resize' as const, rows, cols })),
)

test('a frame is a type, a big-endian length and the payload', () => {
  const input = encodeShellFrame({ type: 'input', data: Uint8Array.of(0x6c, 0x73) })
  const resize = encodeShellFrame({ type: 'resize', rows: 24, cols: 300 })

  assert.deepEqual([...input], [0, 0, 0, 0, 2, 0x6c, 0x73])
  assert.deepEqual([...resize], [1, 0, 0, 0, 4, 0, 24, 1, 44])
})

test('every frame is decoded, however the bytes are split', () => {
  fc.assert(
    fc.property(fc.array(anyFrame), fc.array(fc.nat()), (frames, cuts) => {
      const bytes = new Uint8Array(Buffer.concat(frames.map(encodeShellFrame)))

      assert.deepEqual(decode(split(bytes, cuts)), frames)
    }),
  )
})

test('every split of the same bytes, also invalid ones, gives the same frames and the same error', () => {
  const start = fc.constantFrom([0, 0, 0, 0, 3], [1, 0, 0, 0, 4], [1, 0, 0, 0, 3], [2], [0, 0xff])
  fc.assert(
    fc.property(fc.array(start), fc.uint8Array(), fc.array(fc.nat()), (starts, rest, cuts) => {
      const whole = Uint8Array.from([...starts.flatMap((one) => [...one, 1, 2, 3, 0]), ...rest])

      assert.deepEqual(decode(split(whole, cuts)), decode([whole]))
    }),
  )
})

test('an unknown type is an error, after the frames before it', () => {
  const good = encodeShellFrame({ type: 'resize', rows: 1, cols: 2 })

  assert.deepEqual(decode([Uint8Array.from([...good, 7])]), [
    { type: 'resize', rows: 1, cols: 2 },
    'unknown frame type 7',
  ])
})

test('a payload has at most 1 MiB', () => {
  const largest = { type: 'input' as const, data: new Uint8Array(SHELL_PAYLOAD_MAX_BYTES).fill(1) }

  assert.deepEqual(decode([encodeShellFrame(largest)]), [largest])
  assert.match(String(decode([Uint8Array.of(0, 0, 0x10, 0, 1)])), /1048577 bytes is over 1048576/)
  assert.match(String(decode([Uint8Array.of(0, 0xff, 0xff, 0xff, 0xff)])), /is over/)
  assert.throws(() => encodeShellFrame({ type: 'input', data: new Uint8Array(SHELL_PAYLOAD_MAX_BYTES + 1) }))
})

test('a resize of the wrong length is an error', () => {
  assert.deepEqual(decode([Uint8Array.of(1, 0, 0, 0, 5)]), ['a resize has 4 bytes, not 5'])
})

test('a frame does not share memory with the input buffer', () => {
  const bytes = encodeShellFrame({ type: 'input', data: Uint8Array.of(9) })

  const [frame] = new ShellFrameDecoder().push(bytes)
  bytes.fill(0)

  assert.deepEqual(frame, { type: 'input', data: Uint8Array.of(9) })
})
