import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { truncateUtf8, Utf8Chunker, utf8Length } from './utf8.ts'

const anyText = fc.string({ unit: 'binary' })
const someMax = fc.integer({ min: 4, max: 40 })

test('the length of a text is that of its encoding, also with lone surrogates', () => {
  fc.assert(
    fc.property(fc.string({ unit: fc.constantFrom('a', 'é', '€', '😀', '\ud83d', '\ude00') }), (text) => {
      assert.equal(utf8Length(text), Buffer.byteLength(text))
    }),
  )
})

test('a truncated text fits, and with one more character it does not', () => {
  fc.assert(
    fc.property(anyText, fc.nat(40), (text, max) => {
      const truncated = truncateUtf8(text, max)

      assert.ok(text.startsWith(truncated))
      assert.ok(utf8Length(truncated) <= max)
      const next = [...text.slice(truncated.length)][0]
      assert.ok(next === undefined || utf8Length(truncated + next) > max)
    }),
  )
})

test('however bytes are split, the chunks join to the same text, fit, and split no character', () => {
  fc.assert(
    fc.property(fc.array(fc.uint8Array({ maxLength: 60 })), someMax, (inputs, max) => {
      const chunker = new Utf8Chunker(max)

      const chunks = [...inputs.flatMap((input) => chunker.push(input)), ...chunker.end()]

      const whole = new TextDecoder('utf-8', { ignoreBOM: true }).decode(Buffer.concat(inputs))
      assert.equal(chunks.join(''), whole)
      for (const chunk of chunks) {
        assert.ok(chunk !== '' && chunk.isWellFormed())
        assert.ok(utf8Length(chunk) <= max)
      }
    }),
  )
})

test('text that is split in the middle of characters is decoded completely', () => {
  fc.assert(
    fc.property(anyText, someMax, fc.integer({ min: 1, max: 7 }), (text, max, step) => {
      const bytes = new TextEncoder().encode(text)
      const chunker = new Utf8Chunker(max)
      const chunks: string[] = []

      for (let from = 0; from < bytes.length; from += step)
        chunks.push(...chunker.push(bytes.subarray(from, from + step)))
      chunks.push(...chunker.end())

      assert.equal(chunks.join(''), text)
    }),
  )
})

test('an incomplete character waits for its bytes, and is replaced at the end', () => {
  const chunker = new Utf8Chunker(64)

  assert.deepEqual(chunker.push(Uint8Array.of(0x61, 0xe2, 0x82)), ['a'])
  assert.deepEqual(chunker.push(Uint8Array.of(0xac, 0xe2)), ['€'])
  assert.deepEqual(chunker.end(), ['\ufffd'])
})

test('every chunk fits although replaced bytes are longer', () => {
  const chunks = new Utf8Chunker(9).push(new Uint8Array(10).fill(0xff))

  assert.deepEqual(
    chunks.map((chunk) => chunk.length),
    [3, 3, 3, 1],
  )
})

test('a byte order mark is preserved', () => {
  assert.deepEqual(new Utf8Chunker(64).push(Uint8Array.of(0xef, 0xbb, 0xbf, 0x61)), ['\ufeffa'])
})

test('a limit that is too small for some characters is refused', () => {
  assert.throws(() => new Utf8Chunker(3), /at least 4/)
})
