import assert from 'node:assert/strict'
import { type Duplex, duplexPair } from 'node:stream'
import { test } from 'node:test'
import { openJsonLines } from './json-lines.ts'
import { until } from './testing/until.ts'

const MAX_BYTES = 100

test('messages arrive one by one, however the bytes are split', async () => {
  const { received, violations, other } = open()

  for (const part of ['{"a"', ':1}\n{"b":2}\n', '[3', ']\n', Buffer.from([0x22, 0xc3]), Buffer.from([0xa9, 0x22, 10])])
    other.write(part)
  await until(() => received.length === 4)

  assert.deepEqual(received, [{ a: 1 }, { b: 2 }, [3], 'é'])
  assert.deepEqual(violations, [])
})

for (const [what, bytes, message] of [
  ['a line that is not JSON', 'no json\n', /JSON/],
  ['an empty line', '\n', /JSON/],
  ['a line that is too long', `"${'x'.repeat(MAX_BYTES)}"\n`, /longer than 100 bytes/],
  ['a line that is too long and does not end', 'x'.repeat(MAX_BYTES + 1), /longer than 100 bytes/],
  ['a message that the receiver does not accept', '{"bad":1}\n', /not accepted/],
] as const) {
  test(`${what} is a violation, and nothing after it is read`, async () => {
    const { received, violations, other } = open()

    other.write('{"good":1}\n')
    other.write(bytes)
    other.write('{"good":2}\n')
    await until(() => violations.length > 0)

    assert.match(violations[0]!.message, message)
    assert.equal(violations.length, 1)
    assert.deepEqual(received, [{ good: 1 }])
  })
}

test('the end of the other side is reported, and sending to it does nothing', async () => {
  const { lines, closes, other } = open()

  other.destroy()
  await until(() => closes.count > 0)

  lines.send({ late: true })
  lines.end()
})

function open() {
  const [stream, other] = duplexPair() as [Duplex, Duplex]
  other.on('error', () => {})
  const received: unknown[] = []
  const violations: Error[] = []
  const closes = { count: 0 }
  const lines = openJsonLines(stream, {
    maxBytes: MAX_BYTES,
    onMessage: (message) => {
      if ((message as { bad?: number }).bad) throw new Error('not accepted')
      received.push(message)
    },
    onViolation: (error) => violations.push(error),
    onClose: () => closes.count++,
  })
  return { lines, received, violations, closes, other }
}
