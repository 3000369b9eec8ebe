import {
  Empty,
  ExecBody,
  ExecQuery,
  ExecResult,
  FILE_MAX_BYTES,
  FileQuery,
  ok,
  SandboxParams,
  SshPubkeysBody,
  SshPubkeysView,
  success,
} from '@warren/protocol'
import { Type } from 'typebox'
import type { Deps } from '../deps.ts'
import { acceptRawBodies, LARGE_JSON_BODY_MAX_BYTES, limitBytes } from '../http/body.ts'
import { callerDisconnected } from '../http/caller-disconnected.ts'
import { loadOwnSandbox } from '../http/load-own-sandbox.ts'
import type { App } from '../http/server.ts'
import { addSshKeys } from './add-ssh-keys.ts'
import { execBuffered } from './exec-buffered.ts'
import { execStream } from './exec-stream.ts'
import { getFile } from './get-file.ts'
import { putFile } from './put-file.ts'

export function guestRoutes(app: App, deps: Deps): void {
  app.post(
    '/v1/sandboxes/:id/exec',
    {
      bodyLimit: LARGE_JSON_BODY_MAX_BYTES,
      config: { access: 'token' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Run a command. With `stream`, output is sent as NDJSON while the command runs',
        tags: ['guest'],
        params: SandboxParams,
        querystring: ExecQuery,
        body: ExecBody,
        response: { 200: success(ExecResult) },
      },
    },
    async (request, reply) => {
      if (request.query.stream || request.body.stream) {
        await execStream(deps, request.sandbox, request.body, reply)
        return reply
      }
      return ok(await execBuffered(deps, request.sandbox, request.body, callerDisconnected(reply)))
    },
  )

  app.get(
    '/v1/sandboxes/:id/files',
    {
      config: { access: 'token' },
      preValidation: loadOwnSandbox(deps),
      // A HEAD request would read the whole file only to discard it.
      exposeHeadRoute: false,
      schema: {
        summary: 'Download a file',
        tags: ['guest'],
        params: SandboxParams,
        querystring: FileQuery,
        response: { 200: { description: 'The content of the file', content: RAW } },
      },
    },
    async (request, reply) => {
      const file = await getFile(deps, request.sandbox, request.query.path, callerDisconnected(reply))
      reply.type('application/octet-stream')
      if (file.bytes !== undefined) reply.header('content-length', file.bytes)
      return reply.send(file.content as never) // The route's type allows only JSON.
    },
  )

  app.post(
    '/v1/sandboxes/:id/ssh-pubkeys',
    {
      bodyLimit: LARGE_JSON_BODY_MAX_BYTES,
      config: { access: 'user' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Add SSH public keys. A running sandbox accepts them immediately, a paused one after it is resumed',
        tags: ['guest'],
        params: SandboxParams,
        body: SshPubkeysBody,
        response: { 200: success(SshPubkeysView) },
      },
    },
    async (request) => ok(await addSshKeys(deps, request.sandbox.id, request.body.keys)),
  )

  app.register(async (scope) => {
    acceptRawBodies(scope)
    scope.put(
      '/v1/sandboxes/:id/files',
      {
        config: { access: 'token' },
        preValidation: loadOwnSandbox(deps),
        schema: {
          summary: 'Upload a file of up to 10 GiB. Missing directories are created',
          tags: ['guest'],
          params: SandboxParams,
          querystring: FileQuery,
          response: { 200: success(Empty) },
        },
      },
      async (request, reply) => {
        const { path } = request.query as { path: string } // Checked by the schema; the type is lost in a nested scope.
        try {
          const bytes = limitBytes(request.raw, FILE_MAX_BYTES)
          const announced = Number(request.headers['content-length'] ?? 0)
          await putFile(deps, request.sandbox, path, { bytes, announced }, callerDisconnected(reply))
        } catch (error) {
          // The rest of the request body must be read, or the response could be lost with the connection. `resume` would
          // have no effect while the iterator over the body still exists; a listener takes over once it is gone.
          request.raw.on('data', () => {})
          throw error
        }
        return ok({})
      },
    )
  })
}

const RAW = { 'application/octet-stream': { schema: Type.String({ format: 'binary' }) } }
