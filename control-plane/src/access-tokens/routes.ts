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
  // A token must not manage itself.
  const config = { access: 'user' } as const

  app.post(
    '/v1/sandboxes/:id/access-token',
    {
      config,
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Create the access token of a sandbox. The token is shown only once',
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
        summary: 'Get the status of the access token, with a hint to identify it',
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
        summary: 'Rotate the access token. The old one becomes invalid immediately and its open streams are closed',
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
        summary: 'Disable the access token and close its open streams. Idempotent',
        tags,
        params: SandboxParams,
        response: { 200: success(AccessTokenView) },
      },
    },
    async (request) => ok(await deleteAccessToken(deps, request.sandbox.id)),
  )
}
