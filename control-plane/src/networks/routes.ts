import {
  NetworkAttachBody,
  NetworkCreateBody,
  NetworkDetachParams,
  NetworkDetailView,
  NetworkParams,
  NetworkView,
  Ok,
  ok,
  PageQuery,
  page,
  SandboxParams,
  success,
} from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { storeResponse } from '../http/idempotency.ts'
import { loadOwnSandbox } from '../http/load-own-sandbox.ts'
import { paged } from '../http/pagination.ts'
import type { App } from '../http/server.ts'
import { attachNetwork } from './attach.ts'
import { createNetwork } from './create.ts'
import { deleteNetwork } from './delete.ts'
import { detachNetwork } from './detach.ts'
import { getNetworkView, listNetworks } from './queries.ts'

export function networkRoutes(app: App, deps: Deps): void {
  app.get(
    '/v1/networks',
    {
      config: { access: 'user' },
      schema: {
        summary: 'List private networks, newest first',
        tags: ['network'],
        querystring: PageQuery,
        response: { 200: success(page(NetworkView)) },
      },
    },
    async (request) => {
      const { networks, ...counts } = await listNetworks(deps, request.caller.user.id, request.query)
      return ok(paged(networks, counts))
    },
  )

  app.post(
    '/v1/networks',
    {
      config: { access: 'user', idempotent: true },
      schema: {
        summary: 'Create a private network',
        tags: ['network'],
        body: NetworkCreateBody,
        response: { 200: success(NetworkView) },
      },
    },
    async (request, reply) => {
      const { idempotency: claim } = request
      const render = reply.getSerializationFunction('200')! // Declared above.
      const view = await createNetwork(deps, request.caller.user.id, request.body, async (tx, created) => {
        if (claim) await storeResponse(tx, claim, 200, render(ok(created)))
      })
      return ok(view)
    },
  )

  app.get(
    '/v1/networks/:id',
    {
      config: { access: 'user' },
      schema: {
        summary: 'Get a network and its members, by id or name',
        tags: ['network'],
        params: NetworkParams,
        response: { 200: success(NetworkDetailView) },
      },
    },
    async (request) => ok(await getNetworkView(deps, request.caller.user.id, request.params.id)),
  )

  app.delete(
    '/v1/networks/:id',
    {
      config: { access: 'user' },
      schema: {
        summary: 'Delete a network that has no members',
        tags: ['network'],
        params: NetworkParams,
        response: { 200: success(Ok) },
      },
    },
    async (request) => {
      await deleteNetwork(deps, request.caller.user.id, request.params.id)
      return ok({ ok: true as const })
    },
  )

  app.post(
    '/v1/sandboxes/:id/networks',
    {
      config: { access: 'user' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Attach a running sandbox to a network; repeating it changes nothing',
        tags: ['network'],
        params: SandboxParams,
        body: NetworkAttachBody,
        response: { 200: success(Ok) },
      },
    },
    async (request) => {
      await attachNetwork(deps, request.sandbox, request.body.id)
      return ok({ ok: true as const })
    },
  )

  app.delete(
    '/v1/sandboxes/:id/networks/:net',
    {
      config: { access: 'user' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Detach a sandbox from a network and drop its open connections to the members',
        tags: ['network'],
        params: NetworkDetachParams,
        response: { 200: success(Ok) },
      },
    },
    async (request) => {
      await detachNetwork(deps, request.sandbox, request.params.net)
      return ok({ ok: true as const })
    },
  )
}
