import {
  ok,
  success,
  WEBHOOK_ACTIONS,
  WebhookActionsView,
  WebhookCreateBody,
  WebhookCreatedView,
  WebhookDeleteView,
  WebhookDeliveryParams,
  WebhookDeliveryView,
  WebhookDetailView,
  WebhookEndpointView,
  WebhookListView,
  WebhookParams,
} from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { storeSecretResponse } from '../http/idempotency.ts'
import type { App } from '../http/server.ts'
import { replayDelivery, sendTestEvent } from './add-delivery.ts'
import { createWebhook } from './create.ts'
import { deleteWebhook } from './delete.ts'
import { getWebhookDetail, listWebhooks } from './queries.ts'
import { resumeWebhook } from './resume.ts'
import { suspendWebhook } from './suspend.ts'

export function webhookRoutes(app: App, deps: Deps): void {
  const config = { access: 'user' } as const
  const tags = ['webhook']
  const params = WebhookParams

  app.get(
    '/v1/webhook-endpoints/actions',
    {
      config,
      schema: {
        summary: 'List the actions that a webhook endpoint can subscribe to',
        tags,
        response: { 200: success(WebhookActionsView) },
      },
    },
    async () => ok([...WEBHOOK_ACTIONS]),
  )

  app.post(
    '/v1/webhook-endpoints',
    {
      config: { ...config, idempotent: true },
      schema: {
        summary: 'Create a webhook endpoint. The response contains its secret, which is shown only once',
        tags,
        body: WebhookCreateBody,
        response: { 200: success(WebhookCreatedView) },
      },
    },
    async (request, reply) => {
      const { idempotency: claim } = request
      const render = reply.getSerializationFunction('200')! // Declared above.
      const view = await createWebhook(deps, request.caller.user, request.body, async (tx, created) => {
        if (claim) await storeSecretResponse(deps, tx, claim, 200, render(ok(created)))
      })
      return ok(view)
    },
  )

  app.get(
    '/v1/webhook-endpoints',
    {
      config,
      schema: {
        summary: 'List webhook endpoints, newest first',
        tags,
        response: { 200: success(WebhookListView) },
      },
    },
    async (request) => ok(await listWebhooks(deps, request.caller.user.id)),
  )

  app.get(
    '/v1/webhook-endpoints/:id',
    {
      config,
      schema: {
        summary: 'Get a webhook endpoint and its recent deliveries, newest first',
        tags,
        params,
        response: { 200: success(WebhookDetailView) },
      },
    },
    async (request) => ok(await getWebhookDetail(deps, request.caller.user.id, request.params.id)),
  )

  app.post(
    '/v1/webhook-endpoints/:id/suspend',
    {
      config,
      schema: {
        summary: 'Stop deliveries to a webhook endpoint',
        tags,
        params,
        response: { 200: success(WebhookEndpointView) },
      },
    },
    async (request) => ok(await suspendWebhook(deps, request.caller.user.id, request.params.id)),
  )

  app.post(
    '/v1/webhook-endpoints/:id/resume',
    {
      config,
      schema: {
        summary: 'Start deliveries to a suspended webhook endpoint again, and reset its failure count',
        tags,
        params,
        response: { 200: success(WebhookEndpointView) },
      },
    },
    async (request) => ok(await resumeWebhook(deps, request.caller.user.id, request.params.id)),
  )

  app.post(
    '/v1/webhook-endpoints/:id/test',
    {
      config,
      schema: {
        summary: 'Send a test event (webhook.test) to a webhook endpoint; get the endpoint to see the result',
        tags,
        params,
        response: { 200: success(WebhookDeliveryView) },
      },
    },
    async (request) => ok(await sendTestEvent(deps, request.caller.user.id, request.params.id)),
  )

  app.post(
    '/v1/webhook-endpoints/:id/deliveries/:delivery/replay',
    {
      config,
      schema: {
        summary: 'Deliver the event of a completed delivery again, as a new delivery',
        tags,
        params: WebhookDeliveryParams,
        response: { 200: success(WebhookDeliveryView) },
      },
    },
    async (request) => {
      const { id, delivery } = request.params
      return ok(await replayDelivery(deps, request.caller.user.id, id, delivery))
    },
  )

  app.delete(
    '/v1/webhook-endpoints/:id',
    {
      config,
      schema: {
        summary: 'Delete a webhook endpoint and its deliveries',
        tags,
        params,
        response: { 200: success(WebhookDeleteView) },
      },
    },
    async (request) => ok(await deleteWebhook(deps, request.caller.user.id, request.params.id)),
  )
}
