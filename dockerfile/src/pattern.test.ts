import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { parsePattern, removePrefix, removeSuffix, replaceMatches } from './pattern.ts'

const values = fc.string({ unit: fc.constantFrom('a', 'b', '😀'), maxLength: 8 })
const patterns = fc.string({ unit: fc.constantFrom('a', 'b', '*', '?', '😀'), maxLength: 5 })

/** Whether the whole text matches. */
function matches(pattern: string, text: string): boolean {
  const expression = [...pattern].map((char) => ({ '*': '.*', '?': '.' })[char] ?? char).join('')
  return new RegExp(`^${expression}$`, 'su').test(text)
}

const pick = (lengths: number[], isLongest: boolean): number | undefined => (isLongest ? lengths.at(-1) : lengths[0])

test('the shortest or longest prefix that matches is removed', () => {
  fc.assert(
    fc.property(patterns, values, fc.boolean(), (pattern, value, isLongest) => {
      const chars = [...value]
      const lengths = [...chars.keys(), chars.length].filter((n) => matches(pattern, chars.slice(0, n).join('')))
      const expected = chars.slice(pick(lengths, isLongest) ?? 0).join('')

      assert.equal(removePrefix(parsePattern(pattern), value, isLongest), expected)
    }),
  )
})

test('the shortest or longest suffix that matches is removed', () => {
  fc.assert(
    fc.property(patterns, values, fc.boolean(), (pattern, value, isLongest) => {
      const chars = [...value]
      const lengths = [...chars.keys(), chars.length].filter((n) =>
        matches(pattern, chars.slice(chars.length - n).join('')),
      )
      const expected = chars.slice(0, chars.length - (pick(lengths, isLongest) ?? 0)).join('')

      assert.equal(removeSuffix(parsePattern(pattern), value, isLongest), expected)
    }),
  )
})

test('matches are replaced from left to right, each as long as possible', () => {
  const replace = (pattern: string, value: string, isEvery: boolean) =>
    replaceMatches(parsePattern(pattern), value, '_', isEvery, () => {})

  assert.equal(replace('b', 'abcabc', false), 'a_cabc')
  assert.equal(replace('b', 'abcabc', true), 'a_ca_c')
  assert.equal(replace('a*c', 'xabcabcx', true), 'x_x')
  assert.equal(replace('*', 'abc', true), '_')
  assert.equal(replace('*', '', true), '_')
  assert.equal(replace('', 'ab', true), '_a_b_')
  assert.equal(replace('x', 'ab', true), 'ab')
})

test('a backslash makes a character literal', () => {
  assert.equal(removePrefix(parsePattern('\\*\\?'), '*?a', false), 'a')
  assert.equal(removePrefix(parsePattern('\\\\'), '\\a', false), 'a')
})
