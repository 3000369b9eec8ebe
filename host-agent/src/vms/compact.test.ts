import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { chooseMerge } from './compact.ts'

test('layers of like size are merged, a large one below small ones is left alone', () => {
  assert.equal(chooseMerge([]), 0)
  assert.equal(chooseMerge([5]), 1)
  assert.equal(chooseMerge([1, 1]), 0)
  assert.equal(chooseMerge([100, 1]), 2)
  assert.equal(chooseMerge([100, 2, 1]), 1)
  assert.equal(chooseMerge([100, 40, 20, 20]), 0)
})

test('whatever is written, the chain stays short and no byte is rewritten often', () => {
  fc.assert(
    fc.property(fc.array(fc.integer({ min: 1, max: 1000 }), { maxLength: 300 }), (pauses) => {
      let chain: number[] = []
      let [written, rewritten] = [0, 0]
      for (const bytes of pauses) {
        chain.push(bytes)
        written += bytes
        const from = chooseMerge(chain)
        const merged = chain.slice(from).reduce((sum, size) => sum + size, 0)
        if (from >= chain.length) continue
        rewritten += merged
        chain = [...chain.slice(0, from), merged]
      }
      assert.ok(chain.length <= 1 + Math.log(Math.max(written, 1)) / Math.log(3) + 1, `${chain.length}`)
      assert.ok(rewritten <= written * 12, `${rewritten} of ${written}`)
    }),
  )
})
