import assert from 'node:assert/strict'
import { test } from 'node:test'
import { idTime, newId, ulid } from './ids.ts'

test('ids of one process sort in the order of their creation, also within a millisecond', (t) => {
  t.mock.timers.enable({ apis: ['Date'], now: 1_800_000_000_000 })

  const ids = Array.from({ length: 1_000 }, () => newId('sandbox'))

  assert.deepEqual([...new Set(ids)].sort(), ids)
  for (const id of ids) assert.match(id, /^sb-[0-9A-HJKMNP-TV-Z]{26}$/)
})

test('they keep this order if the clock is set back', (t) => {
  t.mock.timers.enable({ apis: ['Date'], now: 1_900_000_000_000 })
  const before = ulid()
  t.mock.timers.setTime(1_899_999_999_000)

  const after = ulid()

  assert.ok(after > before, `${before} ${after}`)
})

test('an id begins with its time and does not tell the next one', () => {
  const [first, second] = [ulid(1_700_000_000_000), ulid(1_700_000_000_000)]

  assert.equal(first.slice(0, 10), '01HF7YAT00')
  assert.notEqual(second.slice(0, -1), first.slice(0, -1))
})

test('an id tells when it was chosen', () => {
  const nowMs = Date.UTC(2026, 0, 2, 3, 4, 5, 678)
  assert.equal(idTime(newId('sandbox', nowMs)), nowMs)
  assert.equal(idTime(newId('disk', 0)), 0)
  assert.ok(Number.isNaN(idTime('sb-1')))
})
