/** Deliveries that a user asks for: a test event, and the repetition of an earlier delivery. */
import { failure } from '@warren/kit/failure'
import { type DeliveredAction, WEBHOOK_TEST_ACTION, type WebhookDeliveryView } from '@warren/protocol'
import { sql } from 'kysely'
import { currentAuditId } from '../audit/context.ts'
import type { WebhookDeliveryRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { renderTime } from '../sandboxes/view.ts'
import { getDelivery, getWebhook, viewDelivery } from './queries.ts'

/** Whatever the endpoint subscribes to. */
export async function sendTestEvent(deps: Deps, userId: string, id: string): Promise<WebhookDeliveryView> {
  const endpoint = await getWebhook(deps.db, userId, id)
  if (!endpoint.active) throw failure('wrong_state', 'webhook endpoint is suspended, expected active')
  const payload = { event: WEBHOOK_TEST_ACTION, occurredAt: renderTime(deps.now()), data: { id, name: 'test' } }
  return addDelivery(deps, id, WEBHOOK_TEST_ACTION, JSON.stringify(payload))
}

/** A new delivery with the same body. A pending one will be attempted anyway. */
export async function replayDelivery(
  deps: Deps,
  userId: string,
  id: string,
  deliveryId: string,
): Promise<WebhookDeliveryView> {
  await getWebhook(deps.db, userId, id)
  const delivery = await getDelivery(deps.db, id, deliveryId)
  if (delivery.status === 'pending') {
    throw failure('wrong_state', 'webhook delivery is pending, expected delivered or failed')
  }
  return addDelivery(deps, id, delivery.event_action, delivery.payload)
}

async function addDelivery(
  deps: Deps,
  endpointId: string,
  action: DeliveredAction,
  payload: string,
): Promise<WebhookDeliveryView> {
  const { rows } = await sql<WebhookDeliveryRow>`with added as (
      insert into webhook_deliveries (endpoint_id, event_action, subject, payload, audit_log_id)
      values (${endpointId}, ${action}, gen_random_uuid()::text, ${payload}, ${currentAuditId() ?? null})
      returning *)
    select added.*, pg_notify('webhook_deliveries', endpoint_id::text) from added`.execute(deps.db)
  return viewDelivery(rows[0]!)
}
