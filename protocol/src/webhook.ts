/** Webhook endpoints and deliveries. Their fields are in camel case, unlike those of all other resources. */
import { type Static, Type } from 'typebox'
import { Timestamp, UserId, WebhookEndpointId } from './ids.ts'
import { optionalNull } from './optional-null.ts'
import { checkHttpUrl } from './urls.ts'
import { DeliveredAction, WEBHOOK_ACTIONS, WebhookAction, WebhookEvent } from './webhook-events.ts'

export const WEBHOOK_SECRET_PREFIX = 'whsec_'
export const WEBHOOK_TIMESTAMP_HEADER = 'X-Webhook-Timestamp'
export const WEBHOOK_SIGNATURE_HEADER = 'X-Webhook-Signature'
export const WEBHOOK_SIGNATURE_PREFIX = 'sha256='
/** The id of the delivery, the same at each attempt, so that a receiver can recognise a repetition. */
export const WEBHOOK_DELIVERY_HEADER = 'X-Webhook-Delivery'
export const WEBHOOK_EVENT_HEADER = 'X-Webhook-Event'
export const WEBHOOK_URL_MAX_CHARACTERS = 2048
/** A delivery fails when the receiver takes longer or redirects. */
export const WEBHOOK_TIMEOUT_MS = 10_000
/** Delays after the first attempt and after each retry except the last. */
export const WEBHOOK_RETRY_DELAYS_MS = [5_000, 30_000, 2 * 60_000, 10 * 60_000, 60 * 60_000] as const
/** After this many failed deliveries the endpoint is suspended. */
export const WEBHOOK_FAILURES_MAX = 50
/** Retention of the records of completed deliveries, and of all records. */
export const WEBHOOK_COMPLETED_RETENTION_MS = 30 * 60_000
export const WEBHOOK_RETENTION_MS = 72 * 3_600_000

/** Delay after `attempts` attempts, including the first. Undefined after the last one. */
export const webhookRetryDelayMs = (attempts: number): number | undefined => WEBHOOK_RETRY_DELAYS_MS[attempts - 1]

/** The signed text: the timestamp in seconds as sent in the header, and the exact body. */
export const webhookSignedText = (timestamp: string | number, rawBody: string): string => `${timestamp}.${rawBody}`

export const DELIVERY_STATUSES = ['pending', 'delivered', 'failed'] as const
export type DeliveryStatus = (typeof DELIVERY_STATUSES)[number]
export const DeliveryStatus = Type.Enum(DELIVERY_STATUSES)

/** Allowed transitions of a delivery. It stays pending during retries. */
export const DELIVERY_MOVES = {
  deliver: { from: ['pending'], to: 'delivered' },
  giveUp: { from: ['pending'], to: 'failed' },
} as const satisfies Record<string, { from: readonly DeliveryStatus[]; to: DeliveryStatus }>

/** Clients fetch the list because it grows over time. */
export const WebhookActionsView = Type.Array(WebhookAction)

export const WebhookCreateBody = Type.Object({
  url: Type.String({ description: 'URL of the receiver, beginning with http:// or https://.' }),
  events: optionalNull(Type.Array(Type.String(), { description: 'Actions to deliver. Absent or empty for all.' })),
})
export type WebhookCreateBody = Static<typeof WebhookCreateBody>

/** Error text for the field `url`, or undefined if it is valid. */
export const checkWebhookUrl = (url: string): string | undefined =>
  url.length > WEBHOOK_URL_MAX_CHARACTERS
    ? `must have at most ${WEBHOOK_URL_MAX_CHARACTERS} characters`
    : checkHttpUrl(url)

/** Error text for the field `events`, or undefined if it is valid. */
export function checkWebhookEvents(events: readonly string[]): string | undefined {
  const unknown = events.find((event) => !(WEBHOOK_ACTIONS as readonly string[]).includes(event))
  return unknown === undefined ? undefined : `unknown action ${JSON.stringify(unknown.slice(0, 100))}`
}

export const WebhookParams = Type.Object({ id: Type.String({ description: 'Webhook endpoint id' }) })
export type WebhookParams = Static<typeof WebhookParams>

export const WebhookDeliveryParams = Type.Object({
  ...WebhookParams.properties,
  delivery: Type.String({ description: 'Delivery id' }),
})

export const WebhookEndpointView = Type.Object({
  id: WebhookEndpointId,
  userId: UserId,
  url: Type.String(),
  events: Type.Array(WebhookAction, { description: 'Delivered actions. Empty for all.' }),
  active: Type.Boolean({ description: 'False when the endpoint is suspended after too many failures.' }),
  failureCount: Type.Integer(),
  createdAt: Timestamp,
})
export type WebhookEndpointView = Static<typeof WebhookEndpointView>

export const WebhookCreatedView = Type.Object({
  ...WebhookEndpointView.properties,
  secret: Type.String({
    pattern: `^${WEBHOOK_SECRET_PREFIX}`,
    description: 'Secret for verifying signatures. It is shown only in this response.',
  }),
})
export type WebhookCreatedView = Static<typeof WebhookCreatedView>

export const WebhookListView = Type.Array(WebhookEndpointView)

export const WebhookDeliveryView = Type.Object({
  id: Type.String(),
  endpointId: WebhookEndpointId,
  auditLogId: Type.Optional(Type.String()),
  eventAction: DeliveredAction,
  status: DeliveryStatus,
  attempts: Type.Integer(),
  payload: WebhookEvent,
  lastError: Type.Optional(Type.String()),
  nextAttemptAt: Type.Optional(Timestamp),
  deliveredAt: Type.Union([Timestamp, Type.Null()], { description: 'Null until delivered.' }),
  createdAt: Timestamp,
})
export type WebhookDeliveryView = Static<typeof WebhookDeliveryView>

export const WebhookDetailView = Type.Object({
  endpoint: WebhookEndpointView,
  deliveries: Type.Array(WebhookDeliveryView),
})
export type WebhookDetailView = Static<typeof WebhookDetailView>

export const WebhookDeleteView = Type.Object({ deleted: Type.Literal(true) })
export type WebhookDeleteView = Static<typeof WebhookDeleteView>
