import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { meets, percentile, ratio, resultOf, summarise } from './stats.ts'

test('a percentile is the sample at the nearest rank', () => {
  const samples = [15, 20, 35, 40, 50]

  assert.equal(percentile(samples, 5), 15)
  assert.equal(percentile(samples, 30), 20)
  assert.equal(percentile(samples, 40), 20)
  assert.equal(percentile(samples, 50), 35)
  assert.equal(percentile(samples, 100), 50)
})

test('the 99th percentile of a hundred samples is the second largest', () => {
  const samples = Array.from({ length: 100 }, (_, at) => at + 1)

  assert.deepEqual(summarise(samples), { n: 100, p50: 50, p95: 95, p99: 99, max: 100 })
})

test('one sample is every percentile', () => {
  assert.deepEqual(summarise([7]), { n: 1, p50: 7, p95: 7, p99: 7, max: 7 })
})

test('the order of the samples does not matter, and they are not modified', () => {
  const samples = [10, 9, 100, 1]

  assert.deepEqual(summarise(samples), { n: 4, p50: 9, p95: 100, p99: 100, max: 100 })
  assert.deepEqual(samples, [10, 9, 100, 1])
})

test('a percentile is a sample that at least that share of the samples does not exceed', () => {
  const samplesOf = fc.array(fc.double({ noNaN: true }), { minLength: 1 })
  fc.assert(
    fc.property(samplesOf, fc.integer({ min: 1, max: 100 }), (samples, percent) => {
      const sorted = samples.toSorted((a, b) => a - b)

      const value = percentile(sorted, percent)

      assert.ok(samples.includes(value))
      assert.ok(samples.filter((sample) => sample <= value).length * 100 >= percent * samples.length)
      assert.ok(samples.filter((sample) => sample < value).length * 100 < percent * samples.length)
    }),
  )
})

test('no samples give no summary', () => {
  assert.throws(() => summarise([]), /no samples/)
})

test('the ratio is ours over the baseline', () => {
  assert.equal(ratio(30, 60), 0.5)
  assert.throws(() => ratio(30, 0), /baseline of 0/)
})

test('a value equal to the target meets it', () => {
  const of = (p50: number, baseline: number) => ({ p50, ratio: p50 / baseline, baseline: { name: '', p50: baseline } })

  assert.equal(meets({ ratio: '>=', value: 0.5 }, of(50, 100)), true)
  assert.equal(meets({ ratio: '>=', value: 0.5 }, of(49, 100)), false)
  assert.equal(meets({ ratio: '<=', value: 2 }, of(200, 100)), true)
  assert.equal(meets({ ratio: '<=', value: 2 }, of(201, 100)), false)
  assert.equal(meets({ ratio: '<=', value: 1.5, plus: 3 }, of(18, 10)), true)
  assert.equal(meets({ ratio: '<=', value: 1.5, plus: 3 }, of(18.1, 10)), false)
  assert.equal(meets({ p50: '<=', value: 250 }, of(250, 1)), true)
  assert.equal(meets({ p50: '<=', value: 250 }, of(251, 1000)), false)
  assert.equal(meets({ p50: '>=', value: 250 }, of(250, 1)), true)
  assert.equal(meets({ p50: '>=', value: 250 }, of(249, 1000)), false)
})

test('a result contains the worst sample and compares the medians', () => {
  const row = { name: 'made-up', unit: 'ms', baseline: 'nothing' } as const

  const result = resultOf(row, { ours: [4, 2, 900], baseline: [1, 2, 3], ok: 0.75 })

  assert.deepEqual(result, {
    name: 'made-up',
    unit: 'ms',
    n: 3,
    ok: 0.75,
    p50: 4,
    p95: 900,
    p99: 900,
    max: 900,
    baseline: { name: 'nothing', p50: 2 },
    ratio: 2,
  })
})
