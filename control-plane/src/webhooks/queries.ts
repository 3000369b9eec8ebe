/** Queries for webhook endpoints. Each one filters by owner, so the endpoint of another user is not found. */
import { notFound } from '@warren/kit/failure'
import type { WebhookDeliveryView, WebhookDetailView, WebhookEndpointView } from '@warren/protocol'
import type { Db, Tx } from '../db/connect.ts'
import type { WebhookDeliveryRow, WebhookEndpointRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { renderTime } from '../sandboxes/view.ts'

/** The newest ones. Completed deliveries are removed after half an hour, so this is usually all of them. */
const DELIVERIES_MAX = 500

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/
export const endpointNotFound = () => notFound('webhook endpoint')

export async function listWebhooks(deps: Deps, userId: string): Promise<WebhookEndpointView[]> {
  const rows = await deps.db
    .selectFrom('webhook_endpoints')
    .selectAll()
    .where('user_id', '=', userId)
    .orderBy('created_at', 'desc')
    .orderBy('id')
    .execute()
  return rows.map(viewEndpoint)
}

export async function getWebhookDetail(deps: Deps, userId: string, id: string): Promise<WebhookDetailView> {
  const endpoint = await getWebhook(deps.db, userId, id)
  const deliveries = await deps.db
    .selectFrom('webhook_deliveries')
    .selectAll()
    .where('endpoint_id', '=', id)
    .orderBy('seq', 'desc')
    .limit(DELIVERIES_MAX)
    .execute()
  return { endpoint: viewEndpoint(endpoint), deliveries: deliveries.map(viewDelivery) }
}

/** Throws 404. An id of another form is a missing endpoint as well. */
export async function getWebhook(db: Db | Tx, userId: string, id: string): Promise<WebhookEndpointRow> {
  if (!UUID.test(id)) throw endpointNotFound()
  const row = await db
    .selectFrom('webhook_endpoints')
    .selectAll()
    .where('id', '=', id)
    .where('user_id', '=', userId)
    .executeTakeFirst()
  if (!row) throw endpointNotFound()
  return row
}

export async function getDelivery(db: Db | Tx, endpointId: string, id: string): Promise<WebhookDeliveryRow> {
  const row = UUID.test(id)
    ? await db
        .selectFrom('webhook_deliveries')
        .selectAll()
        .where('id', '=', id)
        .where('endpoint_id', '=', endpointId)
        .executeTakeFirst()
    : undefined
  if (!row) throw notFound('webhook delivery')
  return row
}

export const viewEndpoint = (row: WebhookEndpointRow): WebhookEndpointView => ({
  id: row.id,
  userId: row.user_id,
  url: row.url,
  events: row.events,
  active: row.active,
  failureCount: row.failure_count,
  createdAt: renderTime(row.created_at),
})

export const viewDelivery = (row: WebhookDeliveryRow): WebhookDeliveryView => ({
  id: row.id,
  endpointId: row.endpoint_id,
  ...(row.audit_log_id === null ? {} : { auditLogId: row.audit_log_id }),
  eventAction: row.event_action,
  status: row.status,
  attempts: row.attempts,
  payload: JSON.parse(row.payload),
  ...(row.last_error === null ? {} : { lastError: row.last_error }),
  ...(row.status === 'pending' && row.next_attempt_at ? { nextAttemptAt: renderTime(row.next_attempt_at) } : {}),
  deliveredAt: row.delivered_at ? renderTime(row.delivered_at) : null,
  createdAt: renderTime(row.created_at),
})
