/** Stops deliveries to an endpoint. Pending ones wait; events that happen meanwhile are not delivered later. */
import type { WebhookEndpointView } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { getWebhook, viewEndpoint } from './queries.ts'

export async function suspendWebhook(deps: Deps, userId: string, id: string): Promise<WebhookEndpointView> {
  await getWebhook(deps.db, userId, id)
  await deps.db.updateTable('webhook_endpoints').set({ active: false }).where('id', '=', id).execute()
  return viewEndpoint(await getWebhook(deps.db, userId, id))
}
