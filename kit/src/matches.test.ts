import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Type } from 'typebox'
import { Value } from 'typebox/value'
import { matches } from './matches.ts'

const Example = Type.Object({
  id: Type.String({ pattern: '^sb-\\w+$', maxLength: 20 }),
  kind: Type.Union([Type.Literal('a'), Type.Object({ n: Type.Integer({ minimum: 1 }) })]),
  names: Type.Array(Type.String(), { maxItems: 2 }),
  envs: Type.Record(Type.String(), Type.String()),
  more: Type.Optional(Type.Union([Type.Number(), Type.Null()])),
})
const GOOD = { id: 'sb-1', kind: 'a', names: [], envs: {} }

test('a generated check decides like the interpreter, on the first and on later values', () => {
  const values: unknown[] = [
    GOOD,
    { ...GOOD, kind: { n: 1 }, envs: { A: 'b' }, more: null },
    { ...GOOD, unknown: 1 },
    { ...GOOD, id: 'sb-' },
    { ...GOOD, id: `sb-${'1'.repeat(20)}` },
    { ...GOOD, kind: { n: 0 } },
    { ...GOOD, names: ['a', 'b', 'c'] },
    { ...GOOD, envs: { A: 1 } },
    { ...GOOD, more: Number.NaN },
    { ...GOOD, more: undefined },
    ...[undefined, null, [], 'sb-1', 7],
  ]

  for (const value of [...values, ...values]) {
    assert.equal(matches(Example, value), Value.Check(Example, value), JSON.stringify(value))
  }
  assert.deepEqual([matches(Example, GOOD), matches(Example, {})], [true, false])
})
