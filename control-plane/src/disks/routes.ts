/**
 * What a sandbox has mounted. Nothing can be registered or attached yet, so that is nothing; but it is asked: the
 * public CLI looks before every push and pull whether the path lies on a disk, and gives up when it is not told.
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
        summary: 'List what a sandbox has mounted',
        tags: ['disk'],
        params: SandboxParams,
        querystring: PageQuery,
        response: { 200: success(page(DiskAttachmentView)) },
      },
    },
    async (request) => ok(pageOf<DiskAttachmentView>([], request.query)),
  )
}
