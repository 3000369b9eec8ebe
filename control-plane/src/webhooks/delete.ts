/** Deletes an endpoint and, by the reference to it, all its deliveries. */
import type { WebhookDeleteView } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { endpointNotFound, getWebhook } from './queries.ts'

export async function deleteWebhook(deps: Deps, userId: string, id: string): Promise<WebhookDeleteView> {
  await getWebhook(deps.db, userId, id)
  const deleted = await deps.db.deleteFrom('webhook_endpoints').where('id', '=', id).returning('id').executeTakeFirst()
  if (!deleted) throw endpointNotFound()
  return { deleted: true }
}
