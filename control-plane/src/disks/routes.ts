/**
 * Lists the disks of a sandbox. Disks cannot be attached yet, so the list is always empty. The route exists because
 * existing command line clients call it before each file transfer and fail without it.
 */
import { DiskAttachmentView, ok, PageQuery, page, SandboxParams, success } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { loadOwnSandbox } from '../http/load-own-sandbox.ts'
import { pageOf } from '../http/pagination.ts'
import type { App } from '../http/server.ts'

export function diskRoutes(app: App, deps: Deps): void {
  app.get(
    '/v1/sandboxes/:id/disks',
    {
      config: { access: 'user' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'List the disks that are attached to a sandbox',
        tags: ['disk'],
        params: SandboxParams,
        querystring: PageQuery,
        response: { 200: success(page(DiskAttachmentView)) },
      },
    },
    async (request) => ok(pageOf<DiskAttachmentView>([], request.query)),
  )
}
