import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { encodeLine, NdjsonDecoder, NdjsonError, readNdjson } from './ndjson.ts'

const LINE_MAX_BYTES = 40
const encode = (text: string) => new TextEncoder().encode(text)

/** The decoded values, followed by the error message if decoding failed. */
function decode(pieces: readonly Uint8Array[], lineMaxBytes = LINE_MAX_BYTES): unknown[] {
  const decoder = new NdjsonDecoder(lineMaxBytes)
  const out: unknown[] = []
  try {
    for (const piece of pieces) for (const value of decoder.push(piece)) out.push(value)
    for (const value of decoder.end()) out.push(value)
  } catch (error) {
    assert.ok(error instanceof NdjsonError)
    out.push(error.message)
  }
  return out
}

function split(bytes: Uint8Array, cuts: readonly number[]): Uint8Array[] {
  const ends = [...cuts.map((cut) => cut % (bytes.length + 1)).sort((a, b) => a - b), bytes.length]
  return ends.map((end, i) => bytes.subarray(ends[i - 1] ?? 0, end))
}

test('a line is compact and ends with a newline', () => {
  assert.equal(encodeLine({ stdout: 'a\nb' }), '{"stdout":"a\\nb"}\n')
})

test('every value is decoded, however the bytes are split', () => {
  fc.assert(
    fc.property(fc.array(fc.jsonValue()), fc.array(fc.nat()), (values, cuts) => {
      const bytes = encode(values.map(encodeLine).join(''))

      const decoded = decode(split(bytes, cuts), 1_000_000)

      assert.deepEqual(decoded, JSON.parse(JSON.stringify(values)))
    }),
  )
})

test('every split of the same bytes, also invalid ones, gives the same values and the same error', () => {
  const line = fc.oneof(
    fc.jsonValue({ maxDepth: 1 }).map((value) => JSON.stringify(value)),
    fc.constantFrom('', ' \r', '{', 'nonsense', `"${'€'.repeat(20)}"`),
  )
  const bytes = fc.oneof(
    fc.array(line).map((lines) => encode(lines.join('\n'))),
    fc.uint8Array({ maxLength: 80 }),
  )
  fc.assert(
    fc.property(bytes, fc.array(fc.nat()), (whole, cuts) => {
      assert.deepEqual(decode(split(whole, cuts)), decode([whole]))
    }),
  )
})

test('empty lines are skipped and the last newline is optional', () => {
  assert.deepEqual(decode([encode('\n{"a":1}\r\n\n{"b":2}')]), [{ a: 1 }, { b: 2 }])
})

test('a line over the limit is an error before its end arrives, after the values before it', () => {
  const endless = encode(`{"a":1}\n"${'x'.repeat(LINE_MAX_BYTES)}`)

  assert.deepEqual(decode([endless]), [{ a: 1 }, 'a line is longer than 40 bytes'])
  assert.deepEqual(decode([encode(`"${'x'.repeat(LINE_MAX_BYTES - 2)}"\n`)]), ['x'.repeat(LINE_MAX_BYTES - 2)])
})

test('a stream is read to its end', async () => {
  async function* stream() {
    yield encode('{"a"')
    yield encode(':1}\n2\n')
    yield encode('3')
  }

  const values = await Array.fromAsync(readNdjson(stream()))

  assert.deepEqual(values, [{ a: 1 }, 2, 3])
})

test('a stream that ends within a value is an error', async () => {
  async function* stream() {
    yield encode('{"exit_')
  }

  await assert.rejects(Array.fromAsync(readNdjson(stream())), NdjsonError)
})
