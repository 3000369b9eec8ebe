import assert from 'node:assert/strict'
import { test } from 'node:test'
import { checkWritten } from './run.ts'

const GIB = 1024 ** 3

test('steps that write the disk again and again end the build, whatever the guest says is used', () => {
  const written =
    (...gib: number[]) =>
    () =>
      checkWritten(
        gib.map((one) => ({ bytes: one * GIB })),
        10 * 1024,
      )

  assert.doesNotThrow(written(10, 10, 10))
  assert.throws(written(10, 10, 10, 1), {
    code: 'too_large',
    message: /have written 33\.3 GB, more than 3 times the disk/,
  })
})
