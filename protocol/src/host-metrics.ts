/**
 * The metrics of a host agent, in the data model of Prometheus. The control plane asks its hosts for them, adds the label
 * `host` to each sample, and serves them together with its own.
 */
import { type Static, Type } from 'typebox'

export const HostMetricSample = Type.Object({
  /** Of a histogram: which of its series this is a sample of. */
  suffix: Type.Optional(Type.Enum(['_bucket', '_sum', '_count'])),
  labels: Type.Record(Type.String({ pattern: '^[a-z_]+$' }), Type.String()),
  value: Type.Number(),
})
export type HostMetricSample = Static<typeof HostMetricSample>

export const HostMetricFamily = Type.Object({
  name: Type.String({ pattern: '^warren_host_[a-z_]+$' }),
  help: Type.String(),
  type: Type.Enum(['counter', 'gauge', 'histogram']),
  samples: Type.Array(HostMetricSample),
})
export type HostMetricFamily = Static<typeof HostMetricFamily>

export const HostMetrics = Type.Object({ families: Type.Array(HostMetricFamily) })
export type HostMetrics = Static<typeof HostMetrics>
