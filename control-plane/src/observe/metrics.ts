/** Prometheus metrics: requests by route and status, the database pool, and the process. */
import type pg from 'pg'
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'
import { createIngressMetrics } from './ingress-metrics.ts'

export type Metrics = ReturnType<typeof createMetrics>

export function createMetrics(pool: Pick<pg.Pool, 'totalCount' | 'idleCount' | 'waitingCount'>) {
  const registry = new Registry()
  collectDefaultMetrics({ register: registry })
  new Gauge({
    name: 'warren_database_connections',
    help: 'Connections of this process to the database',
    labelNames: ['state'],
    registers: [registry],
    collect() {
      this.set({ state: 'open' }, pool.totalCount)
      this.set({ state: 'idle' }, pool.idleCount)
      this.set({ state: 'waited_for' }, pool.waitingCount)
    },
  })
  return {
    registry,
    ingress: createIngressMetrics(registry),
    requests: new Histogram({
      name: 'warren_http_request_seconds',
      help: 'Time from the request head to the last byte of the response',
      labelNames: ['method', 'route', 'status'],
      buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
      registers: [registry],
    }),
    webhookAttempts: new Counter({
      name: 'warren_webhook_attempts_total',
      help: 'Attempts to deliver a webhook event',
      labelNames: ['outcome'],
      registers: [registry],
    }),
    templateBuilds: new Counter({
      name: 'warren_template_builds_total',
      help: 'Attempts to build a template that have ended',
      labelNames: ['outcome'],
      registers: [registry],
    }),
    templateBuildSeconds: new Histogram({
      name: 'warren_template_build_seconds',
      help: 'Time from the start of the last attempt to the end of a build',
      labelNames: ['outcome'],
      buckets: [1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 3600],
      registers: [registry],
    }),
    templateSteps: new Counter({
      name: 'warren_template_steps_total',
      help: 'Steps of builds, run or found in the cache',
      labelNames: ['result'],
      registers: [registry],
    }),
    templatesUnfinished: new Gauge({
      name: 'warren_templates_unfinished',
      help: 'Templates that wait for their build or are being built',
      labelNames: ['status'],
      registers: [registry],
    }),
    refused: new Counter({
      name: 'warren_http_refused_total',
      help: 'Requests rejected before they reached a route',
      labelNames: ['reason'],
      registers: [registry],
    }),
  }
}
