/** What Prometheus sees of the ingress. Nothing is labelled by sandbox: of those there is no end. */
import { Counter, Gauge, Histogram, type Registry } from 'prom-client'

export type IngressOutcome =
  | 'answered'
  | 'upgraded'
  | 'bad_request'
  | 'not_found'
  | 'misdirected'
  | 'rate_limited'
  | 'bad_gateway'
  | 'not_available'
  /** The client left before there was an answer. */
  | 'client_gone'

export type IngressMetrics = ReturnType<typeof createIngressMetrics>

export function createIngressMetrics(registry: Registry) {
  const registers = [registry]
  /** Called before anything is read: who holds numbers brings them up to date. */
  const sources = new Set<() => void>()
  const collect = () => {
    for (const source of sources) source()
  }
  return {
    sources,
    requests: new Counter<'outcome'>({
      name: 'warren_ingress_requests_total',
      help: 'Requests to sandboxes by what became of them',
      labelNames: ['outcome'],
      registers,
    }),
    connections: new Gauge<'side'>({
      name: 'warren_ingress_connections',
      help: 'Open connections: of clients, into sandboxes, and how many of those wait for the next request',
      labelNames: ['side'],
      collect,
      registers,
    }),
    bytes: new Counter<'direction'>({
      name: 'warren_ingress_bytes_total',
      help: 'Bytes from clients (in) and to clients (out), without what TLS adds',
      labelNames: ['direction'],
      collect,
      registers,
    }),
    upstream: new Histogram<'connection'>({
      name: 'warren_ingress_upstream_seconds',
      help: 'Time from sending a request into a sandbox to the head of its answer, on a new or a kept connection',
      labelNames: ['connection'],
      buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
      registers,
    }),
  }
}
