import { ok, success, Whoami } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import type { App } from '../http/server.ts'
import { whoami } from './whoami.ts'

export function userRoutes(app: App, deps: Deps): void {
  app.get(
    '/v1/whoami',
    {
      config: { access: 'user' },
      schema: {
        summary: 'Get the id of the caller and the number of its sandboxes',
        tags: ['identity'],
        response: { 200: success(Whoami) },
      },
    },
    async (request) => ok(await whoami(deps, request.caller)),
  )
}
