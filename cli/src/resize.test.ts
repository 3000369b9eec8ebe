import assert from 'node:assert/strict'
import { test } from 'node:test'
import { parseSize } from './resize.ts'

test('a size is given in MiB or GiB', () => {
  assert.deepEqual(['20480', '20G', '20gib'].map(parseSize), [20_480, 20_480, 20_480])
})

test('anything else is refused with what to give', () => {
  for (const text of ['', '20 G', '1.5G', '-1', '20T', 'twenty']) {
    assert.throws(() => parseSize(text), /is not a size; give MiB, such as 20480, or GiB, such as 20G/)
  }
})
