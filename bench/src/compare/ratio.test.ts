import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { decideVerdict, estimateRatio, MIN_ROUNDS, type Round } from './ratio.ts'

test('the ratio is the new median over the old one', () => {
  const estimate = estimateRatio([
    { old: [10, 20], new: [30] },
    { old: [30], new: [10, 20] },
    { old: [40], new: [50] },
  ])

  assert.deepEqual(estimate.median, { old: 25, new: 25 })
  assert.deepEqual(estimate.samples, { old: 4, new: 4 })
  assert.equal(estimate.rounds, 3)
  assert.equal(estimate.ratio, 1)
})

test('noise that both versions share in a round does not widen the interval', () => {
  const rounds = [1, 7, 2, 30, 4, 11, 3, 90].map((noise) => ({ old: [10 * noise], new: [12 * noise] }))

  const { ratio, interval } = estimateRatio(rounds)

  for (const value of [ratio, interval.low, interval.high]) assert.ok(Math.abs(value - 1.2) < 1e-9)
})

test('the same samples always give the same interval', () => {
  const samples = fc.array(fc.double({ min: 1, max: 1000, noNaN: true }), { minLength: 1, maxLength: 4 })
  const rounds = fc.array(fc.record({ old: samples, new: samples }), { minLength: 1, maxLength: 12 })
  fc.assert(
    fc.property(rounds, (taken) => {
      const estimate = estimateRatio(taken)

      assert.ok(estimate.interval.low <= estimate.interval.high)
      assert.deepEqual(estimateRatio(taken), estimate)
    }),
    { numRuns: 20 },
  )
})

test('equal versions rarely show a difference, and a real one is shown', () => {
  const random = createLcg(1)
  /** Times with a long tail, and a machine that is slow in every third round. */
  const take = (slowdown: number): Round[] =>
    Array.from({ length: 30 }, (_, round) => {
      const busy = round % 3 === 0 ? 3 : 1
      const sample = () => busy * (5 - Math.log(1 - random()))
      return { old: [sample(), sample()], new: [slowdown * sample(), slowdown * sample()] }
    })
  const verdicts = (slowdown: number) =>
    Array.from({ length: 60 }, () => decideVerdict(estimateRatio(take(slowdown)), true))

  const same = verdicts(1).filter((verdict) => verdict !== 'no difference shown').length
  const slower = verdicts(1.5).filter((verdict) => verdict === 'slower').length

  assert.ok(same <= 6, `${same} of 60 comparisons of equal versions showed a difference`)
  assert.ok(slower >= 57, `only ${slower} of 60 comparisons showed that 1.5 times the time is slower`)
})

test('a smaller time is faster, a smaller rate is slower', () => {
  const estimate = estimateRatio(Array.from({ length: MIN_ROUNDS }, () => ({ old: [10], new: [8] })))

  assert.equal(decideVerdict(estimate, true), 'faster')
  assert.equal(decideVerdict(estimate, false), 'slower')
})

test('an interval that includes 1 shows no difference', () => {
  const rounds = Array.from({ length: 10 }, (_, round) => ({ old: [10], new: [round % 2 === 0 ? 9 : 11] }))

  assert.equal(decideVerdict(estimateRatio(rounds), true), 'no difference shown')
})

test('too few rounds give no verdict, however clear they look', () => {
  const estimate = estimateRatio(Array.from({ length: MIN_ROUNDS - 1 }, () => ({ old: [10], new: [100] })))

  assert.equal(decideVerdict(estimate, true), 'too few rounds')
})

test('without samples there is no ratio', () => {
  assert.throws(() => estimateRatio([]), /median of no samples/)
  assert.throws(() => estimateRatio([{ old: [0], new: [1] }]), /cannot compare with a median of 0/)
})

function createLcg(seed: number): () => number {
  let state = seed
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state / 2 ** 32
  }
}
