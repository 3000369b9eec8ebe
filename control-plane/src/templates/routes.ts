import {
  ok,
  PageQuery,
  success,
  TemplateCreateBody,
  TemplateDeleteView,
  TemplateGetQuery,
  TemplateListView,
  TemplateLogFrame,
  TemplateLogsQuery,
  TemplateParams,
  TemplateView,
} from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { LARGE_JSON_BODY_MAX_BYTES } from '../http/body.ts'
import { storeResponse } from '../http/idempotency.ts'
import { paged } from '../http/pagination.ts'
import type { App } from '../http/server.ts'
import { createTemplate } from './create.ts'
import { deleteTemplate } from './delete.ts'
import { streamLogs } from './logs.ts'
import { getTemplateView, listTemplates } from './queries.ts'

const tags = ['template']

export function templateRoutes(app: App, deps: Deps): void {
  app.get(
    '/v1/templates',
    {
      config: { access: 'user' },
      schema: {
        summary: 'List templates, newest first',
        tags,
        querystring: PageQuery,
        response: { 200: success(TemplateListView) },
      },
    },
    async (request) => {
      const { templates, ...counts } = await listTemplates(deps, request.caller.user.id, request.query)
      return ok({ ...paged(templates, counts), templates })
    },
  )

  app.post(
    '/v1/templates',
    {
      // A Dockerfile of 64 KiB can take six times that as JSON, and a larger one is 400 with its limit.
      bodyLimit: LARGE_JSON_BODY_MAX_BYTES,
      config: { access: 'user', idempotent: true },
      schema: {
        summary: 'Build a template from a Dockerfile. Returns at once; follow the build in its log',
        tags,
        body: TemplateCreateBody,
        response: { 200: success(TemplateView) },
      },
    },
    async (request, reply) => {
      const { idempotency: claim } = request
      const render = reply.getSerializationFunction('200')! // Declared above.
      const view = await createTemplate(deps, request.caller.user.id, request.body, async (tx, created) => {
        if (claim) await storeResponse(tx, claim, 200, render(ok(created)))
      })
      return ok(view)
    },
  )

  app.get(
    '/v1/templates/:id',
    {
      config: { access: 'user' },
      schema: {
        summary: 'Get a template by id or name. A name means the latest ready build, or the latest if none is ready',
        tags,
        params: TemplateParams,
        querystring: TemplateGetQuery,
        response: { 200: success(TemplateView) },
      },
    },
    async (request) => ok(await getTemplateView(deps, request.caller.user.id, request.params.id, request.query)),
  )

  app.get(
    '/v1/templates/:id/logs',
    {
      config: { access: 'user' },
      // A HEAD request would read the whole log only to discard it.
      exposeHeadRoute: false,
      schema: {
        summary: 'Stream the log of a build as NDJSON, until the build has ended',
        tags,
        params: TemplateParams,
        querystring: TemplateLogsQuery,
        response: {
          200: {
            description: 'One JSON frame per line',
            content: { 'application/x-ndjson': { schema: TemplateLogFrame } },
          },
        },
      },
    },
    async (request, reply) => {
      await streamLogs(deps, request.caller.user.id, request.params.id, request.query, reply)
      return reply
    },
  )

  app.delete(
    '/v1/templates/:id',
    {
      config: { access: 'user' },
      schema: {
        summary: 'Delete a template, and cancel its build. Sandboxes that were made from it continue to exist',
        tags,
        params: TemplateParams,
        response: { 200: success(TemplateDeleteView) },
      },
    },
    async (request) => ok(await deleteTemplate(deps, request.caller.user.id, request.params.id)),
  )
}
