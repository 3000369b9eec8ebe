/** The metrics of the S3 proxy. Their labels are names of operations and outcomes; none is chosen by a guest or a store. */
import type { HostMetricFamily, HostMetricSample } from '@warren/protocol'
import { LATENCY_BOUNDS, type S3ProxyCounts } from '../disks/s3-proxy-protocol.ts'
import { renderSamples } from './instruments.ts'

/** Without counts the process does not run, because no sandbox has a disk. */
export function renderS3ProxyCounts(counts: S3ProxyCounts | undefined): HostMetricFamily[] {
  const current: HostMetricFamily[] = [
    gaugeOf('warren_host_bucket_mounts', 'Mounts that the S3 proxy serves', counts?.mounts ?? 0),
    gaugeOf(
      'warren_host_bucket_connections',
      'Open connections of sandboxes to the S3 proxy',
      counts?.connections ?? 0,
    ),
    gaugeOf('warren_host_bucket_requests_in_flight', 'Requests that the S3 proxy is serving', counts?.inFlight ?? 0),
  ]
  if (counts === undefined) return current
  return [
    ...current,
    {
      name: 'warren_host_bucket_requests_total',
      help: 'Requests of sandboxes to the S3 proxy, by operation and outcome: ok, refused (4xx), failed (5xx) or aborted',
      type: 'counter',
      samples: sumByOutcome(counts.requests),
    },
    {
      name: 'warren_host_bucket_bytes_total',
      help: 'Bytes between sandboxes and the S3 proxy',
      type: 'counter',
      samples: renderSamples('direction', { from_guests: counts.bytes.fromGuests, to_guests: counts.bytes.toGuests }),
    },
    {
      name: 'warren_host_bucket_answer_seconds',
      help: 'Time until stores begin to answer the S3 proxy',
      type: 'histogram',
      samples: renderLatency(counts.latency),
    },
  ]
}

const gaugeOf = (name: string, help: string, value: number): HostMetricFamily => ({
  ...{ name, help, type: 'gauge' },
  samples: [{ labels: {}, value }],
})

/** A request whose answer could not be sent has this status (s3-proxy/serve.ts). */
const GUEST_GONE = 499

function toOutcome(status: number): string {
  if (status === GUEST_GONE) return 'aborted'
  if (status < 400) return 'ok'
  return status < 500 ? 'refused' : 'failed'
}

function sumByOutcome(requests: S3ProxyCounts['requests']): HostMetricSample[] {
  const samples = new Map<string, HostMetricSample>()
  for (const { operation, status, count } of requests) {
    const labels = { operation: operation || 'invalid', outcome: toOutcome(status) }
    const name = `${labels.operation} ${labels.outcome}`
    const sample = samples.get(name) ?? { labels, value: 0 }
    sample.value += count
    samples.set(name, sample)
  }
  return [...samples.values()]
}

/** Buckets are cumulative: each counts everything up to its bound. */
function renderLatency({ counts, sumSeconds }: S3ProxyCounts['latency']): HostMetricSample[] {
  let below = 0
  const buckets = counts.map((count, at): HostMetricSample => {
    below += count
    return { suffix: '_bucket', labels: { le: String(LATENCY_BOUNDS[at] ?? '+Inf') }, value: below }
  })
  return [...buckets, { suffix: '_sum', labels: {}, value: sumSeconds }, { suffix: '_count', labels: {}, value: below }]
}
