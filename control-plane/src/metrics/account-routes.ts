import {
  ok,
  success,
  UserMetricsQuery,
  UserMetricsSeriesQuery,
  UserMetricsSeriesView,
  UserMetricsView,
} from '@warren/protocol'
import type { Deps } from '../deps.ts'
import type { App } from '../http/server.ts'
import { getAccountMetrics } from './get-account.ts'
import { getAccountSeries } from './get-account-series.ts'

export function accountMetricsRoutes(app: App, deps: Deps): void {
  app.get(
    '/v1/metrics',
    {
      config: { access: 'user' },
      schema: {
        summary: 'Get the number of sandboxes by status, and what they used in a window of time',
        tags: ['metrics'],
        querystring: UserMetricsQuery,
        response: { 200: success(UserMetricsView) },
      },
    },
    async (request) => ok(await getAccountMetrics(deps, request.caller.user.id, request.query)),
  )

  app.get(
    '/v1/metrics/timeseries',
    {
      config: { access: 'user' },
      schema: {
        summary: 'Get how many sandboxes were created, deleted and running in each hour or day of a window',
        tags: ['metrics'],
        querystring: UserMetricsSeriesQuery,
        response: { 200: success(UserMetricsSeriesView) },
      },
    },
    async (request) => ok(await getAccountSeries(deps, request.caller.user.id, request.query)),
  )
}
