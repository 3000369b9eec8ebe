import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Counter, Histogram } from './instruments.ts'

test('a counter counts each combination of labels', () => {
  const counter = new Counter<'result'>({ name: 'warren_host_tries_total', help: 'Tries' })

  for (const result of ['hit', 'miss', 'hit']) counter.increase({ result })

  assert.deepEqual(counter.collect().samples, [
    { labels: { result: 'hit' }, value: 2 },
    { labels: { result: 'miss' }, value: 1 },
  ])
})

test('the buckets of a histogram are cumulative and end with infinity', () => {
  const histogram = new Histogram<'step'>({ name: 'warren_host_step_seconds', help: 'Steps' }, [0.25, 1])

  for (const seconds of [0.125, 0.25, 0.5, 3]) histogram.observe({ step: 'boot' }, seconds)

  const samples = histogram.collect().samples.map(({ suffix, labels, value }) => [suffix, labels.le, value])
  assert.deepEqual(samples, [
    ['_bucket', '0.25', 2],
    ['_bucket', '1', 3],
    ['_bucket', '+Inf', 4],
    ['_sum', undefined, 3.875],
    ['_count', undefined, 4],
  ])
})
