import { AccessTokenSecretView, AccessTokenView, ok, SandboxParams, success } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { loadOwnSandbox } from '../http/load-own-sandbox.ts'
import type { App } from '../http/server.ts'
import { createAccessToken } from './create.ts'
import { deleteAccessToken } from './delete.ts'
import { getAccessToken } from './get.ts'
import { rotateAccessToken } from './rotate.ts'

export function accessTokenRoutes(app: App, deps: Deps): void {
  const tags = ['access tokens']
  // A token cannot manage itself (spec 5, rule 3).
  const config = { access: 'user' } as const

  app.post(
    '/v1/sandboxes/:id/access-token',
    {
      config,
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Issue the access token of a sandbox; it is shown this once',
        tags,
        params: SandboxParams,
        response: { 200: success(AccessTokenSecretView) },
      },
    },
    async (request) => ok(await createAccessToken(deps, request.sandbox.id)),
  )

  app.get(
    '/v1/sandboxes/:id/access-token',
    {
      config,
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Whether there is an access token, and a hint to tell it by',
        tags,
        params: SandboxParams,
        response: { 200: success(AccessTokenView) },
      },
    },
    async (request) => ok(await getAccessToken(deps, request.sandbox.id)),
  )

  app.post(
    '/v1/sandboxes/:id/access-token/rotate',
    {
      config,
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Replace the access token; the old one is void at once and its streams end',
        tags,
        params: SandboxParams,
        response: { 200: success(AccessTokenSecretView) },
      },
    },
    async (request) => ok(await rotateAccessToken(deps, request.sandbox.id)),
  )

  app.delete(
    '/v1/sandboxes/:id/access-token',
    {
      config,
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Disable the access token; its streams end; may be repeated',
        tags,
        params: SandboxParams,
        response: { 200: success(AccessTokenView) },
      },
    },
    async (request) => ok(await deleteAccessToken(deps, request.sandbox.id)),
  )
}
