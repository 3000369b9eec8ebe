import { BandwidthView, ok, RechargeBody, SandboxParams, success } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { storeResponse } from '../http/idempotency.ts'
import { loadOwnSandbox } from '../http/load-own-sandbox.ts'
import type { App } from '../http/server.ts'
import { getBandwidth } from './get.ts'
import { rechargeBandwidth } from './recharge.ts'

export function bandwidthRoutes(app: App, deps: Deps): void {
  app.get(
    '/v1/sandboxes/:id/bandwidth',
    {
      config: { access: 'token' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Get the traffic of a sandbox and its remaining outbound quota',
        tags: ['network'],
        params: SandboxParams,
        response: { 200: success(BandwidthView) },
      },
    },
    async (request) => ok(await getBandwidth(deps, request.sandbox)),
  )

  app.post(
    '/v1/sandboxes/:id/bandwidth/recharge',
    {
      config: { access: 'user', idempotent: true },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Add outbound quota to a running sandbox. Each started GiB is paid with credit',
        tags: ['network'],
        params: SandboxParams,
        body: RechargeBody,
        response: { 200: success(BandwidthView) },
      },
    },
    async (request, reply) => {
      const { idempotency: claim } = request
      const render = reply.getSerializationFunction('200')! // Declared above.
      const view = await rechargeBandwidth(deps, request.sandbox, request.body, async (tx, charged) => {
        if (claim) await storeResponse(tx, claim, 200, render(ok(charged)))
      })
      return ok(view)
    },
  )
}
