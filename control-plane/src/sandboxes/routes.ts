import { ok, page, SandboxListQuery, SandboxParams, SandboxView, success } from '@warren/protocol'
import type { App } from '../app.ts'
import type { Deps } from '../deps.ts'
import { ownSandbox } from '../http/own-sandbox.ts'
import { paged } from '../http/pagination.ts'
import { listSandboxes } from './queries.ts'
import { viewSandbox } from './view.ts'

export function sandboxRoutes(app: App, deps: Deps): void {
  const view = (row: Parameters<typeof viewSandbox>[0]) => viewSandbox(row, deps.config.ingressDomain)

  app.get(
    '/v1/sandboxes',
    {
      config: { access: 'user' },
      schema: {
        summary: 'List your sandboxes, newest first',
        tags: ['sandboxes'],
        querystring: SandboxListQuery,
        response: { 200: success(page(SandboxView)) },
      },
    },
    async (request) => {
      const { rows, ...counts } = await listSandboxes(deps, request.caller.user.id, request.query)
      return ok(paged(rows.map(view), counts))
    },
  )

  app.get(
    '/v1/sandboxes/:id',
    {
      config: { access: 'token' },
      preValidation: ownSandbox(deps),
      schema: {
        summary: 'Get one sandbox',
        tags: ['sandboxes'],
        params: SandboxParams,
        response: { 200: success(SandboxView) },
      },
    },
    async (request) => ok(view(request.sandbox)),
  )
}
