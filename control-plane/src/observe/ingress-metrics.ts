/** Prometheus metrics of the ingress. None has a label per sandbox, because the number of sandboxes is unbounded. */
import { Counter, Gauge, Histogram, type Registry } from 'prom-client'

export type IngressMetrics = ReturnType<typeof createIngressMetrics>

export function createIngressMetrics(registry: Registry) {
  const registers = [registry]
  /** Called before each scrape, to update metrics that are computed from current state. */
  const sources = new Set<() => void>()
  const collect = () => {
    for (const source of sources) source()
  }
  return {
    sources,
    requests: new Counter<'outcome'>({
      name: 'warren_ingress_requests_total',
      help: 'Requests to sandboxes, by outcome',
      labelNames: ['outcome'],
      registers,
    }),
    connections: new Gauge<'side'>({
      name: 'warren_ingress_connections',
      help: 'Open connections: from clients, into sandboxes, and the idle ones among the latter (kept)',
      labelNames: ['side'],
      collect,
      registers,
    }),
    bytes: new Counter<'direction'>({
      name: 'warren_ingress_bytes_total',
      help: 'Bytes from clients (in) and to clients (out), without TLS overhead',
      labelNames: ['direction'],
      collect,
      registers,
    }),
    upstream: new Histogram<'connection'>({
      name: 'warren_ingress_upstream_seconds',
      help: 'Time from sending a request into a sandbox to the head of its response, on a new or a reused (kept) connection',
      labelNames: ['connection'],
      buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
      registers,
    }),
  }
}
