import { MetricsSeriesView, MetricsView, ok, SandboxParams, success } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { loadOwnSandbox } from '../http/load-own-sandbox.ts'
import type { App } from '../http/server.ts'
import { getSandboxMetrics } from './get-sandbox.ts'
import { getSandboxSeries } from './get-sandbox-series.ts'

export function sandboxMetricsRoutes(app: App, deps: Deps): void {
  app.get(
    '/v1/sandboxes/:id/metrics',
    {
      config: { access: 'token' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Get what a sandbox uses now. All values are 0 while it is paused',
        tags: ['metrics'],
        params: SandboxParams,
        response: { 200: success(MetricsView) },
      },
    },
    async (request) => ok(await getSandboxMetrics(deps, request.sandbox)),
  )

  app.get(
    '/v1/sandboxes/:id/metrics/timeseries',
    {
      config: { access: 'token' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Get what a sandbox used in the last hour, in steps of ten seconds',
        description:
          'A sandbox has no points of times at which it was paused, and none in its first 20 seconds. A value of 0 can mean ' +
          'that it could not be measured.',
        tags: ['metrics'],
        params: SandboxParams,
        response: { 200: success(MetricsSeriesView) },
      },
    },
    async (request) => ok(await getSandboxSeries(deps, request.sandbox)),
  )
}
