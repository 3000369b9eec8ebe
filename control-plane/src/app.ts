/**
 * Builds the HTTP API. Each request passes these steps in order: request id, credential, rate limit, permission of the
 * credential, ownership of the sandbox (404), validation of the body (400), and then the route's handler.
 */
import { VERSION } from '@warren/kit/version'
import { accessTokenRoutes } from './access-tokens/routes.ts'
import { recordRequests } from './audit/record-requests.ts'
import { auditRoutes } from './audit/routes.ts'
import { bandwidthRoutes } from './bandwidth/routes.ts'
import { catalogRoutes } from './catalog/routes.ts'
import { creditRoutes } from './credit/routes.ts'
import type { Deps } from './deps.ts'
import { diskAttachmentRoutes } from './disks/attachment-routes.ts'
import { diskRoutes } from './disks/routes.ts'
import { describeApi, docsRoutes } from './docs/openapi.ts'
import { egressRoutes } from './egress/routes.ts'
import { processRoutes } from './guest/process-routes.ts'
import { guestRoutes } from './guest/routes.ts'
import { shellRoutes } from './guest/shell-routes.ts'
import { healthRoutes } from './health/routes.ts'
import { hostRoutes } from './hosts/routes.ts'
import { addAccessControl } from './http/access-control.ts'
import { acceptJsonBodies } from './http/body.ts'
import { addIdempotency } from './http/idempotency.ts'
import { limitConnections } from './http/limit-connections.ts'
import { type App, createServer } from './http/server.ts'
import { routeUpgrades } from './http/upgrade.ts'
import { mcpRoutes } from './mcp/routes.ts'
import { accountMetricsRoutes } from './metrics/account-routes.ts'
import { sandboxMetricsRoutes } from './metrics/sandbox-routes.ts'
import { networkRoutes } from './networks/routes.ts'
import { observeRequests } from './observe/request-log.ts'
import type { Tracing } from './observe/tracing.ts'
import { sandboxRoutes } from './sandboxes/routes.ts'
import { templateRoutes } from './templates/routes.ts'
import { userRoutes } from './users/routes.ts'
import { webhookRoutes } from './webhooks/routes.ts'

export async function buildApp(deps: Deps, tracing?: Tracing): Promise<App> {
  const app = createServer(deps)
  if (tracing) await app.register(tracing.plugin)

  addAccessControl(app, deps)
  acceptJsonBodies(app, deps.config.jsonBodySeconds)
  addIdempotency(app, deps)
  recordRequests(app, deps)
  observeRequests(app, deps)
  await describeApi(app, VERSION)
  app.addHook('onRoute', (route) => {
    if (!route.config?.access) throw new Error(`route ${route.method} ${route.url} does not declare config.access`)
    for (const method of [route.method].flat()) app.routeList.push({ method, url: route.url })
  })

  healthRoutes(app, deps)
  catalogRoutes(app, deps)
  userRoutes(app, deps)
  auditRoutes(app, deps)
  creditRoutes(app, deps)
  accountMetricsRoutes(app, deps)
  hostRoutes(app, deps)
  sandboxRoutes(app, deps)
  guestRoutes(app, deps)
  processRoutes(app, deps)
  shellRoutes(app, deps)
  accessTokenRoutes(app, deps)
  egressRoutes(app, deps)
  networkRoutes(app, deps)
  bandwidthRoutes(app, deps)
  diskRoutes(app, deps)
  diskAttachmentRoutes(app, deps)
  templateRoutes(app, deps)
  sandboxMetricsRoutes(app, deps)
  webhookRoutes(app, deps)
  mcpRoutes(app, deps, VERSION)
  docsRoutes(app)

  limitConnections(app.server, deps)
  // A client that asks before it sends a body is answered when its credential has been checked (http/access-control.ts).
  app.server.on('checkContinue', (request, response) => app.routing(request, response))
  const upgrades = routeUpgrades(app.server, (request, response) => app.routing(request, response))
  app.addHook('preClose', async () => upgrades.close())
  return app
}
