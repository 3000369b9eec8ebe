/** Webhook endpoints and deliveries (spec 2.13, 3.6, 4.13, 6; wire 15). These fields alone are in camel case. */
import { type Static, Type } from 'typebox'
import { Timestamp, UserId, WebhookEndpointId } from './ids.ts'
import { optionalNull } from './optional-null.ts'
import { checkHttpUrl } from './urls.ts'
import { WEBHOOK_ACTIONS, WebhookAction, WebhookEvent } from './webhook-events.ts'

export const WEBHOOK_SECRET_PREFIX = 'whsec_'
export const WEBHOOK_TIMESTAMP_HEADER = 'X-Webhook-Timestamp'
export const WEBHOOK_SIGNATURE_HEADER = 'X-Webhook-Signature'
export const WEBHOOK_SIGNATURE_PREFIX = 'sha256='
/** A receiver that takes longer has failed; so has one that redirects. */
export const WEBHOOK_TIMEOUT_MS = 10_000
/** After the first attempt and after each retry but the last. */
export const WEBHOOK_RETRY_DELAYS_MS = [5_000, 30_000, 2 * 60_000, 10 * 60_000, 60 * 60_000] as const
/** Of failed deliveries: then the endpoint is suspended. */
export const WEBHOOK_FAILURES_MAX = 50
/** How long a record of a delivery that has ended is kept, and any record at all. */
export const WEBHOOK_ENDED_KEPT_MS = 30 * 60_000
export const WEBHOOK_KEPT_MS = 72 * 3_600_000

/** How long to wait after so many attempts, the first included; undefined when they are used up. */
export const webhookRetryDelayMs = (attempts: number): number | undefined => WEBHOOK_RETRY_DELAYS_MS[attempts - 1]

/** What the signature covers: the seconds as sent in the header, and the body byte for byte. */
export const webhookSignedText = (timestamp: string | number, rawBody: string): string => `${timestamp}.${rawBody}`

export const DELIVERY_STATUSES = ['pending', 'delivered', 'failed'] as const
export type DeliveryStatus = (typeof DELIVERY_STATUSES)[number]
export const DeliveryStatus = Type.Enum(DELIVERY_STATUSES)

/** What may become what. A retry leaves the delivery pending. */
export const DELIVERY_MOVES = {
  deliver: { from: ['pending'], to: 'delivered' },
  giveUp: { from: ['pending'], to: 'failed' },
} as const satisfies Record<string, { from: readonly DeliveryStatus[]; to: DeliveryStatus }>

/** The list grows over time, so clients fetch it. */
export const WebhookActionsView = Type.Array(WebhookAction)

export const WebhookCreateBody = Type.Object({
  url: Type.String({ description: 'http or https.' }),
  events: optionalNull(Type.Array(Type.String(), { description: 'Absent or empty: all actions.' })),
})
export type WebhookCreateBody = Static<typeof WebhookCreateBody>

/** For the field `url`. */
export const checkWebhookUrl = (url: string): string | undefined => checkHttpUrl(url)

/** For the field `events`. */
export function checkWebhookEvents(events: readonly string[]): string | undefined {
  const unknown = events.find((event) => !(WEBHOOK_ACTIONS as readonly string[]).includes(event))
  return unknown === undefined ? undefined : `unknown action ${JSON.stringify(unknown.slice(0, 100))}`
}

export const WebhookParams = Type.Object({ id: Type.String({ description: 'Webhook endpoint id' }) })
export type WebhookParams = Static<typeof WebhookParams>

export const WebhookEndpointView = Type.Object({
  id: WebhookEndpointId,
  userId: UserId,
  url: Type.String(),
  events: Type.Array(WebhookAction, { description: 'Empty: all actions.' }),
  active: Type.Boolean({ description: 'False: suspended.' }),
  failureCount: Type.Integer(),
  createdAt: Timestamp,
})
export type WebhookEndpointView = Static<typeof WebhookEndpointView>

export const WebhookCreatedView = Type.Object({
  ...WebhookEndpointView.properties,
  secret: Type.String({ pattern: `^${WEBHOOK_SECRET_PREFIX}`, description: 'Shown this once.' }),
})
export type WebhookCreatedView = Static<typeof WebhookCreatedView>

export const WebhookListView = Type.Array(WebhookEndpointView)

export const WebhookDeliveryView = Type.Object({
  id: Type.String(),
  endpointId: WebhookEndpointId,
  auditLogId: Type.Optional(Type.String()),
  eventAction: WebhookAction,
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
