import { notFound } from '@warren/kit/failure'
import {
  ok,
  PageQuery,
  page,
  SandboxByIpParams,
  SandboxCreateBody,
  SandboxDeleteView,
  SandboxEvent,
  SandboxForkBody,
  SandboxForkView,
  SandboxListQuery,
  SandboxParams,
  SandboxPatchBody,
  SandboxResizeBody,
  SandboxResizeView,
  SandboxView,
  success,
} from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { egressWarnings } from '../egress/warnings.ts'
import { LARGE_JSON_BODY_MAX_BYTES } from '../http/body.ts'
import { callerDisconnected } from '../http/caller-disconnected.ts'
import { storeResponse } from '../http/idempotency.ts'
import { loadOwnSandbox } from '../http/load-own-sandbox.ts'
import { paged } from '../http/pagination.ts'
import type { App } from '../http/server.ts'
import { createSandbox } from './create.ts'
import { destroySandbox } from './destroy.ts'
import { listEvents } from './events.ts'
import { forkSandbox } from './fork.ts'
import { patchSandbox } from './patch.ts'
import { pauseSandbox } from './pause.ts'
import { findOwnSandboxByIp, listSandboxes } from './queries.ts'
import { resizeSandbox } from './resize.ts'
import { resumeSandbox } from './resume.ts'
import { viewSandbox } from './view.ts'

/** Seconds before the first poll. An earlier one would find the operation still in progress. */
const POLL_AFTER = '1'

export function sandboxRoutes(app: App, deps: Deps): void {
  const discard = (id: string) => {
    deps.log.info({ sandbox: id }, 'caller disconnected before it received the id of its sandbox, destroying it')
    destroySandbox(deps, id).catch((error) => {
      deps.log.error({ err: error, sandbox: id }, 'failed to destroy a sandbox whose caller disconnected')
    })
  }
  const view = (row: Parameters<typeof viewSandbox>[0]) => viewSandbox(row, deps.ingressAddress.urlDomain)

  const viewNew = (row: Parameters<typeof view>[0]) => ({ ...view(row), ...egressWarnings(deps, row.egress) })

  app.post(
    '/v1/sandboxes',
    {
      bodyLimit: LARGE_JSON_BODY_MAX_BYTES,
      config: { access: 'user', idempotent: true },
      schema: {
        summary: 'Create a sandbox. The response is sent once it is running',
        tags: ['sandboxes'],
        body: SandboxCreateBody,
        response: { 200: success(SandboxView) },
      },
    },
    async (request, reply) => {
      const { idempotency: claim } = request
      const disconnected = callerDisconnected(reply)
      const render = reply.getSerializationFunction('200')! // Declared above.
      const row = await createSandbox(deps, request.caller.user, request.body, {
        signal: disconnected,
        commit: async (tx, row) => {
          if (claim) await storeResponse(tx, claim, 200, render(ok(viewNew(row))))
        },
      })
      // A caller that disconnected does not know the id, so the sandbox would leak. With an Idempotency-Key the caller can
      // repeat the request and gets the stored response.
      if (!claim) disconnected.addEventListener('abort', () => discard(row.id), { once: true })
      if (!claim && disconnected.aborted) discard(row.id)
      return ok(viewNew(row))
    },
  )

  app.get(
    '/v1/sandboxes',
    {
      config: { access: 'user' },
      schema: {
        summary: 'List your sandboxes, newest first',
        tags: ['sandboxes'],
        querystring: SandboxListQuery,
        response: { 200: success(page(SandboxView)) },
      },
    },
    async (request) => {
      const { rows, ...counts } = await listSandboxes(deps, request.caller.user.id, request.query)
      return ok(paged(rows.map(view), counts))
    },
  )

  app.get(
    '/v1/sandboxes/:id',
    {
      config: { access: 'token' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Get a sandbox',
        tags: ['sandboxes'],
        params: SandboxParams,
        response: { 200: success(SandboxView) },
      },
    },
    async (request) => ok(view(request.sandbox)),
  )

  app.patch(
    '/v1/sandboxes/:id',
    {
      bodyLimit: LARGE_JSON_BODY_MAX_BYTES,
      config: { access: 'user' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Change ingress, auto-pause or auto-resume of a sandbox. Fields that are not given stay as they are',
        tags: ['sandboxes'],
        params: SandboxParams,
        body: SandboxPatchBody,
        response: { 200: success(SandboxView) },
      },
    },
    async (request) => ok(view(await patchSandbox(deps, request.sandbox, request.body))),
  )

  app.delete(
    '/v1/sandboxes/:id',
    {
      config: { access: 'token' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Destroy a sandbox, whatever its status. Repeating the request is harmless',
        tags: ['sandboxes'],
        params: SandboxParams,
        response: { 200: success(SandboxDeleteView) },
      },
    },
    async (request) => ok(await destroySandbox(deps, request.sandbox.id)),
  )

  app.post(
    '/v1/sandboxes/:id/pause',
    {
      config: { access: 'token' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Pause a running sandbox: its memory, processes and disk are saved and its compute is released',
        tags: ['sandboxes'],
        params: SandboxParams,
        response: { 202: success(SandboxView) },
      },
    },
    async (request, reply) => {
      const row = await pauseSandbox(deps, request.sandbox.id)
      return reply
        .code(202)
        .header('X-Poll-After', POLL_AFTER)
        .send(ok(view(row)))
    },
  )

  app.post(
    '/v1/sandboxes/:id/resume',
    {
      config: { access: 'token' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Resume a paused sandbox. Its processes continue where they were paused',
        tags: ['sandboxes'],
        params: SandboxParams,
        response: { 202: success(SandboxView) },
      },
    },
    async (request, reply) => {
      const row = await resumeSandbox(deps, request.sandbox)
      return reply
        .code(202)
        .header('X-Poll-After', POLL_AFTER)
        .send(ok(view(row)))
    },
  )

  app.post(
    '/v1/sandboxes/:id/fork',
    {
      bodyLimit: LARGE_JSON_BODY_MAX_BYTES,
      config: { access: 'user', idempotent: true },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Fork a paused sandbox: copies continue from its saved state. With `count`, the response is an array',
        tags: ['sandboxes'],
        params: SandboxParams,
        body: SandboxForkBody,
        response: { 202: success(SandboxForkView) },
      },
    },
    async (request, reply) => {
      const { idempotency: claim, body } = request
      const render = reply.getSerializationFunction('202')! // Declared above.
      const responseOf = (rows: Parameters<typeof view>[0][]) =>
        ok(body.count == null ? viewNew(rows[0]!) : rows.map((row) => viewNew(row)))
      const rows = await forkSandbox(deps, request.sandbox, body, async (tx, children) => {
        if (claim) await storeResponse(tx, claim, 202, render(responseOf(children)))
      })
      return reply.code(202).header('X-Poll-After', POLL_AFTER).send(responseOf(rows))
    },
  )

  app.post(
    '/v1/sandboxes/:id/resize',
    {
      config: { access: 'user', idempotent: true },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary: 'Grow the disk of a running sandbox and its file system, without a restart',
        tags: ['sandboxes'],
        params: SandboxParams,
        body: SandboxResizeBody,
        response: { 200: success(SandboxResizeView) },
      },
    },
    async (request) => {
      const { caller, sandbox, body, idempotency: claim } = request
      return ok(await resizeSandbox(deps, caller.user, sandbox, body, claim))
    },
  )

  app.get(
    '/v1/sandboxes/:id/events',
    {
      config: { access: 'token' },
      preValidation: loadOwnSandbox(deps),
      schema: {
        summary:
          'List the status changes of a sandbox and their reasons, newest first. Events are deleted 30 days after the sandbox has ended',
        tags: ['sandboxes'],
        params: SandboxParams,
        querystring: PageQuery,
        response: { 200: success(page(SandboxEvent)) },
      },
    },
    async (request) => {
      const { events, ...counts } = await listEvents(deps, request.sandbox.id, request.query)
      return ok(paged(events, counts))
    },
  )

  app.get(
    '/v1/sandboxes/by-ip/:ip',
    {
      config: { access: 'user' },
      schema: {
        summary: 'Find a sandbox by its IP address. Sandboxes that have ended are not found',
        tags: ['sandboxes'],
        params: SandboxByIpParams,
        response: { 200: success(SandboxView) },
      },
    },
    async (request) => {
      const sandbox = await findOwnSandboxByIp(deps, request.caller.user.id, request.params.ip)
      if (!sandbox) throw notFound('sandbox')
      return ok(view(sandbox))
    },
  )
}
