import { AuditEntry, AuditQuery, ok, page, success } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { paged } from '../http/pagination.ts'
import type { App } from '../http/server.ts'
import { listAuditEntries } from './list.ts'

export function auditRoutes(app: App, deps: Deps): void {
  app.get(
    '/v1/audit',
    {
      config: { access: 'user' },
      schema: {
        summary: 'List the calls that changed your resources, newest first',
        tags: ['account'],
        querystring: AuditQuery,
        response: { 200: success(page(AuditEntry)) },
      },
    },
    async (request) => {
      const { entries, ...counts } = await listAuditEntries(deps, request.caller.user.id, request.query)
      return ok(paged(entries, counts))
    },
  )
}
