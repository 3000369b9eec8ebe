import { ok, PlanView, success, Whoami } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import type { App } from '../http/server.ts'
import { getPlan } from './get-plan.ts'
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

  app.get(
    '/v1/plan',
    {
      config: { access: 'user' },
      schema: {
        summary: 'Get the limits of the plan of the caller, and what is used now',
        tags: ['identity'],
        response: { 200: success(PlanView) },
      },
    },
    async (request) => ok(await getPlan(deps, request.caller.user.id)),
  )
}
