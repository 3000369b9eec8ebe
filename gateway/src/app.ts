/**
 * Builds the HTTP API. Each request passes these steps in order: rate limits, signature and nonce (auth/access-control.ts),
 * body, the route's handler.
 */
import { VERSION } from '@warren/kit/version'
import { addAccessControl } from './auth/access-control.ts'
import { chainRoutes } from './chains/routes.ts'
import type { Deps } from './deps.ts'
import { describeApi, docsRoutes } from './docs/openapi.ts'
import { healthRoutes } from './health/routes.ts'
import { type App, createServer } from './http/server.ts'
import { projectRoutes } from './projects/routes.ts'

export async function buildApp(deps: Deps): Promise<App> {
  const app = createServer(deps)
  addAccessControl(app, deps)
  await describeApi(app, VERSION, deps.config.baseUrl)

  healthRoutes(app)
  chainRoutes(app, deps)
  projectRoutes(app, deps)
  docsRoutes(app)
  return app
}
