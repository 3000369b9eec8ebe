/** Prometheus metrics. None has a label per wallet or project, whose number is unbounded. */
import type { ProxyObserver } from '@warren/kit/http-proxy/backend'
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'
import type { Database } from '../db/connect.ts'

export type Metrics = ReturnType<typeof createMetrics>

const SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]

export function createMetrics(database: Pick<Database, 'pool'>) {
  const registry = new Registry()
  const registers = [registry]
  collectDefaultMetrics({ register: registry })
  addStateOf(database, registry)
  const requests = new Histogram({
    name: 'warren_gateway_request_seconds',
    help: 'Time from the request head to the last byte of the response',
    labelNames: ['method', 'route', 'status'],
    buckets: SECONDS,
    registers,
  })
  const payments = new Counter({
    name: 'warren_gateway_payments_total',
    help: 'Payments that were accepted, by how they were presented',
    labelNames: ['transport', 'chain'],
    registers,
  })
  const deployments = new Histogram({
    name: 'warren_gateway_deployment_seconds',
    help: 'Time from the start of a deployment to its outcome',
    labelNames: ['outcome'],
    buckets: [1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600],
    registers,
  })
  return { registry, requests, payments, deployments, apps: observeApps(registry) }
}

/** Read at each scrape. Every process reports the same: aggregate with `max`. */
function addStateOf({ pool }: Pick<Database, 'pool'>, registry: Registry): void {
  const registers = [registry]
  new Gauge({
    name: 'warren_gateway_projects',
    help: 'Projects by status',
    labelNames: ['status'],
    registers,
    async collect() {
      this.reset()
      const text = 'select status, count(*)::int as count from gateway.projects where deleted_at is null group by 1'
      const { rows } = await pool.query<{ status: string; count: number }>(text)
      for (const { status, count } of rows) this.set({ status }, count)
    },
  })
  new Gauge({
    name: 'warren_gateway_settlements_pending',
    help: 'Payments by x402 and MPP whose outcome on the chain is not known yet',
    registers,
    async collect() {
      const text = `select count(*)::int as count from gateway.settlements where status = 'pending'`
      this.set((await pool.query<{ count: number }>(text)).rows[0]!.count)
    },
  })
  new Gauge({
    name: 'warren_gateway_deployments_queued',
    help: 'Deployments that wait for a place',
    registers,
    async collect() {
      const text = `select count(*)::int as count from gateway.deployments where status = 'queued'`
      this.set((await pool.query<{ count: number }>(text)).rows[0]!.count)
    },
  })
}

function observeApps(registry: Registry): ProxyObserver {
  const registers = [registry]
  const requests = new Counter({
    name: 'warren_gateway_app_requests_total',
    help: 'Requests to apps, by outcome',
    labelNames: ['outcome'],
    registers,
  })
  const bytes = new Counter({
    name: 'warren_gateway_app_bytes_total',
    help: 'Bytes from clients (in) and to clients (out), without TLS overhead',
    labelNames: ['direction'],
    registers,
  })
  const upstream = new Histogram({
    name: 'warren_gateway_app_upstream_seconds',
    help: 'Time from sending a request to an app to the head of its response, on a new or a reused (kept) connection',
    labelNames: ['connection'],
    buckets: SECONDS,
    registers,
  })
  return {
    countRequest: (outcome) => requests.inc({ outcome }),
    countBytes: (direction, count) => bytes.inc({ direction }, count),
    startUpstream() {
      const stop = upstream.startTimer()
      return (connection) => void stop({ connection })
    },
  }
}
