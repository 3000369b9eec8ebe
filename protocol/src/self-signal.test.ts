import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { cleanSelfReason, parseSelfPipeLine } from './self-signal.ts'

test('a reason loses its control characters and what is past 128 characters', () => {
  assert.equal(cleanSelfReason('  done\n\u0007for\u0085 today\x1b[31m '), 'donefor today[31m')
  assert.equal(cleanSelfReason('x'.repeat(200)), 'x'.repeat(128))
  assert.equal(cleanSelfReason(`${'x'.repeat(127)}😀!`), `${'x'.repeat(127)}😀`)
})

test('a reason of which nothing is left is none', () => {
  for (const empty of [undefined, null, '', ' ', '\0\n']) assert.equal(cleanSelfReason(empty), undefined)
})

test('whatever a guest says, what is kept is short, plain and whole', () => {
  fc.assert(
    fc.property(fc.string({ unit: fc.constantFrom('a', ' ', '\n', '\0', '😀', '\ud83d'), maxLength: 300 }), (said) => {
      const reason = cleanSelfReason(said) ?? ''

      assert.ok([...reason].length <= 128)
      assert.ok(reason.isWellFormed() && !/\p{Cc}/u.test(reason))
    }),
  )
})

test('each verb of the pipe has its action', () => {
  for (const verb of ['park', 'pause', ' pause\r']) assert.equal(parseSelfPipeLine(verb), 'pause', verb)
  for (const verb of ['retire', 'delete', 'rm', 'destroy']) assert.equal(parseSelfPipeLine(verb), 'delete', verb)
})

test('comments, empty lines and unknown verbs do nothing', () => {
  for (const line of ['# pause', '#', '', '  ', 'PAUSE', 'rm -rf /', 'constructor', '__proto__']) {
    assert.equal(parseSelfPipeLine(line), undefined, line)
  }
})
