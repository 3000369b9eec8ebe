import { Healthz, ok, Readyz, success } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import type { App } from '../http/server.ts'
import { createReadiness } from './readiness.ts'

export function healthRoutes(app: App, deps: Deps): void {
  const checkReady = createReadiness(deps)

  app.get(
    '/healthz',
    {
      config: { access: 'public', skipRateLimit: true },
      schema: { summary: 'Check that the process is running', tags: ['health'], response: { 200: success(Healthz) } },
    },
    async () => ok({ up: true as const }),
  )

  app.get(
    '/readyz',
    {
      config: { access: 'public', skipRateLimit: true },
      schema: {
        summary: 'Check that the service is ready: the database responds',
        tags: ['health'],
        response: { 200: success(Readyz) },
      },
    },
    async () => {
      await checkReady()
      return ok({ ready: true as const })
    },
  )
}
