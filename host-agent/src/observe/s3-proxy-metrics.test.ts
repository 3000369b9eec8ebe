import assert from 'node:assert/strict'
import { test } from 'node:test'
import { HostMetricFamily } from '@warren/protocol'
import { Value } from 'typebox/value'
import { LATENCY_BOUNDS, type S3ProxyCounts } from '../disks/s3-proxy-protocol.ts'
import { renderS3ProxyCounts } from './s3-proxy-metrics.ts'

const counts: S3ProxyCounts = {
  ...{ mounts: 2, connections: 3, inFlight: 1 },
  requests: [
    { operation: 'getObject', status: 200, count: 5 },
    { operation: 'getObject', status: 206, count: 2 },
    { operation: 'putObject', status: 499, count: 1 },
    { operation: '', status: 401, count: 4 },
    { operation: 'headBucket', status: 502, count: 1 },
  ],
  bytes: { fromGuests: 10, toGuests: 20 },
  latency: { counts: [...LATENCY_BOUNDS.map((_, at) => (at === 1 ? 3 : 0)), 1], sumSeconds: 31 },
}
const samplesOf = (name: string) => renderS3ProxyCounts(counts).find((family) => family.name === name)!.samples

test('every family is valid for the control plane', () => {
  for (const family of renderS3ProxyCounts(counts)) assert.ok(Value.Check(HostMetricFamily, family), family.name)
})

test('requests are counted by operation and outcome', () => {
  assert.deepEqual(
    samplesOf('warren_host_bucket_requests_total').map(({ labels, value }) => [
      labels.operation,
      labels.outcome,
      value,
    ]),
    [
      ['getObject', 'ok', 7],
      ['putObject', 'aborted', 1],
      ['invalid', 'refused', 4],
      ['headBucket', 'failed', 1],
    ],
  )
})

test('the times of stores are a cumulative histogram', () => {
  const samples = samplesOf('warren_host_bucket_answer_seconds')
  const at = (le: string) => samples.find(({ labels }) => labels.le === le)!.value

  assert.deepEqual([at('0.005'), at('0.01'), at('30'), at('+Inf')], [0, 3, 3, 4])
  assert.deepEqual(
    samples.slice(-2).map(({ suffix, value }) => [suffix, value]),
    [
      ['_sum', 31],
      ['_count', 4],
    ],
  )
})

test('without a process there are no mounts, and nothing that it would count', () => {
  assert.deepEqual(
    renderS3ProxyCounts(undefined).map(({ name, samples }) => [name, samples[0]!.value]),
    [
      ['warren_host_bucket_mounts', 0],
      ['warren_host_bucket_connections', 0],
      ['warren_host_bucket_requests_in_flight', 0],
    ],
  )
})
