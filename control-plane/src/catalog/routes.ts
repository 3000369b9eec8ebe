import { ok, PageQuery, page, RootfsCatalog, SHAPES, ShapeView, success, viewShape } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { pageOf } from '../http/pagination.ts'
import type { App } from '../http/server.ts'
import { readRootfsCatalog } from './rootfs.ts'

export function catalogRoutes(app: App, deps: Deps): void {
  app.get(
    '/v1/shapes',
    {
      config: { access: 'public' },
      schema: {
        summary: 'List the sizes (shapes) of sandboxes, smallest first',
        tags: ['catalog'],
        querystring: PageQuery,
        response: { 200: success(page(ShapeView)) },
      },
    },
    async (request) => ok(pageOf(SHAPES.map(viewShape), request.query)),
  )

  app.get(
    '/v1/rootfs',
    {
      config: { access: 'public' },
      schema: {
        summary: 'List the root file systems for new sandboxes, and the default',
        tags: ['catalog'],
        response: { 200: success(RootfsCatalog) },
      },
    },
    async () => ok(await readRootfsCatalog(deps)),
  )
}
