import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { parseSelfPipeLine, sanitizeSelfReason } from './self-signal.ts'

test('control characters and everything after 128 characters are removed from a reason', () => {
  assert.equal(sanitizeSelfReason('  done\n\u0007for\u0085 today\x1b[31m '), 'donefor today[31m')
  assert.equal(sanitizeSelfReason('x'.repeat(200)), 'x'.repeat(128))
  assert.equal(sanitizeSelfReason(`${'x'.repeat(127)}😀!`), `${'x'.repeat(127)}😀`)
})

test('a reason that is empty after sanitizing is undefined', () => {
  for (const empty of [undefined, null, '', ' ', '\0\n']) assert.equal(sanitizeSelfReason(empty), undefined)
})

test('a sanitized reason is short, has no control characters and is well formed', () => {
  fc.assert(
    fc.property(fc.string({ unit: fc.constantFrom('a', ' ', '\n', '\0', '😀', '\ud83d'), maxLength: 300 }), (input) => {
      const reason = sanitizeSelfReason(input) ?? ''

      assert.ok([...reason].length <= 128)
      assert.ok(reason.isWellFormed() && !/\p{Cc}/u.test(reason))
    }),
  )
})

test('each verb of the pipe maps to an action', () => {
  for (const verb of ['park', 'pause', ' pause\r']) assert.equal(parseSelfPipeLine(verb), 'pause', verb)
  for (const verb of ['retire', 'delete', 'rm', 'destroy']) assert.equal(parseSelfPipeLine(verb), 'delete', verb)
})

test('comments, empty lines and unknown verbs are ignored', () => {
  for (const line of ['# pause', '#', '', '  ', 'PAUSE', 'rm -rf /', 'constructor', '__proto__']) {
    assert.equal(parseSelfPipeLine(line), undefined, line)
  }
})
