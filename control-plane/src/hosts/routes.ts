import { HostView, ok, PageQuery, page, success } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { paged } from '../http/pagination.ts'
import type { App } from '../http/server.ts'
import { listHosts } from './list.ts'

export function hostRoutes(app: App, deps: Deps): void {
  app.get(
    '/v1/hosts',
    {
      config: { access: 'operator' },
      schema: {
        summary: 'List the hosts that run sandboxes. Operators only',
        tags: ['hosts'],
        querystring: PageQuery,
        response: { 200: success(page(HostView)) },
      },
    },
    async (request) => {
      const { hosts, ...counts } = await listHosts(deps, request.query)
      return ok(paged(hosts, counts))
    },
  )
}
