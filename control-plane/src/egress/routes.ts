import {
  EgressDecisionsView,
  EgressFlowsView,
  EgressPutBody,
  EgressView,
  ok,
  SandboxParams,
  success,
} from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { loadOwnSandbox } from '../http/load-own-sandbox.ts'
import type { App } from '../http/server.ts'
import { getNetworkReport } from './report.ts'
import { setEgress } from './set.ts'

export function egressRoutes(app: App, deps: Deps): void {
  app.get(
    '/v1/sandboxes/:id/egress',
    {
      config: { access: 'user' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'List what a sandbox may reach; an empty list allows everything',
        tags: ['network'],
        params: SandboxParams,
        response: { 200: success(EgressView) },
      },
    },
    async ({ sandbox: { id, egress } }) => ok({ id, egress }),
  )

  app.put(
    '/v1/sandboxes/:id/egress',
    {
      config: { access: 'user' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Replace the egress rules of a sandbox; null, no list or an empty list allows everything',
        tags: ['network'],
        params: SandboxParams,
        body: EgressPutBody,
        response: { 200: success(EgressView) },
      },
    },
    async (request) => ok(await setEgress(deps, request.sandbox, request.body)),
  )

  app.get(
    '/v1/sandboxes/:id/egress/decisions',
    {
      config: { access: 'user' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'List recent connection attempts of a running sandbox that were refused, and why, newest first',
        tags: ['network'],
        params: SandboxParams,
        response: { 200: success(EgressDecisionsView) },
      },
    },
    async ({ sandbox }) => ok({ id: sandbox.id, decisions: (await getNetworkReport(deps, sandbox)).decisions }),
  )

  app.get(
    '/v1/sandboxes/:id/egress/flows',
    {
      config: { access: 'user' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'List the destinations that a running sandbox reached within the last day, most used first',
        tags: ['network'],
        params: SandboxParams,
        response: { 200: success(EgressFlowsView) },
      },
    },
    async ({ sandbox }) => ok({ id: sandbox.id, flows: (await getNetworkReport(deps, sandbox)).flows }),
  )
}
