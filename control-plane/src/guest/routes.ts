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
import { acceptRawBodies, limitBytes } from '../http/body.ts'
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
      config: { access: 'token' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Run a command; with `stream` the answer is NDJSON, as it happens',
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
      // It would read the whole file to throw it away.
      exposeHeadRoute: false,
      schema: {
        summary: 'Read a file',
        tags: ['guest'],
        params: SandboxParams,
        querystring: FileQuery,
        response: { 200: { description: 'The bytes', content: RAW } },
      },
    },
    async (request, reply) => {
      const file = await getFile(deps, request.sandbox, request.query.path, callerDisconnected(reply))
      reply.type('application/octet-stream')
      if (file.bytes !== undefined) reply.header('content-length', file.bytes)
      return reply.send(file.content as never) // The type knows only of JSON.
    },
  )

  app.post(
    '/v1/sandboxes/:id/ssh-pubkeys',
    {
      config: { access: 'user' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Add SSH keys; they open the door at once when the sandbox runs, else when it is resumed',
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
          summary: 'Write a file of up to 10 GiB; missing directories are made',
          tags: ['guest'],
          params: SandboxParams,
          querystring: FileQuery,
          response: { 200: success(Empty) },
        },
      },
      async (request, reply) => {
        const { path } = request.query as { path: string } // Checked by the schema; a scope has no types of it.
        try {
          const bytes = limitBytes(request.raw, FILE_MAX_BYTES)
          const announced = Number(request.headers['content-length'] ?? 0)
          await putFile(deps, request.sandbox, path, { bytes, announced }, callerDisconnected(reply))
        } catch (error) {
          // What is still on its way must be read, or the answer could be lost with the connection.
          request.raw.resume()
          throw error
        }
        return ok({})
      },
    )
  })
}

const RAW = { 'application/octet-stream': { schema: Type.String({ format: 'binary' }) } }
