import { randomBytes, randomUUID } from 'node:crypto'
import { badField } from '@warren/kit/failure'
import {
  checkWebhookEvents,
  checkWebhookUrl,
  WEBHOOK_SECRET_PREFIX,
  type WebhookAction,
  type WebhookCreateBody,
  type WebhookCreatedView,
} from '@warren/protocol'
import type { Tx } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import type { CallerUser } from '../http/caller.ts'
import { webhookSecretPlace } from '../secrets/places.ts'
import { checkCaps } from '../users/caps.ts'
import { withLockedUser } from '../users/locked.ts'
import { mayUseLoopback } from '../users/may-use-loopback.ts'
import { WEBHOOK_CAPS } from './caps.ts'
import { viewEndpoint } from './queries.ts'
import { NOT_ALLOWED } from './send.ts'

/** Runs in the transaction that creates the endpoint. */
type Commit = (tx: Tx, view: WebhookCreatedView) => Promise<void>

export async function createWebhook(
  deps: Deps,
  user: CallerUser,
  body: WebhookCreateBody,
  commit?: Commit,
): Promise<WebhookCreatedView> {
  const events = await checkBody(deps, user, body)
  const id = randomUUID()
  const secret = WEBHOOK_SECRET_PREFIX + randomBytes(32).toString('base64url')
  return withLockedUser(deps.db, user.id, async (tx, locked) => {
    await checkCaps(tx, locked, WEBHOOK_CAPS)
    const row = await tx
      .insertInto('webhook_endpoints')
      .values({
        id,
        user_id: user.id,
        url: body.url,
        secret: deps.secrets.seal(webhookSecretPlace(id), secret),
        events,
      })
      .returningAll()
      .executeTakeFirstOrThrow()
    const view = { ...viewEndpoint(row), secret }
    await commit?.(tx, view)
    return view
  })
}

/** Every 400 comes from here. Returns the actions, each once. */
async function checkBody(deps: Deps, user: CallerUser, { url, events }: WebhookCreateBody): Promise<WebhookAction[]> {
  const urlFault = checkWebhookUrl(url)
  if (urlFault) throw badField({ url: urlFault })
  const eventsFault = checkWebhookEvents(events ?? [])
  if (eventsFault) throw badField({ events: eventsFault })
  const isAllowed = await deps.webhookTargets.isAllowedNow(new URL(url), mayUseLoopback(deps.config, user.plan))
  if (!isAllowed) throw badField({ url: NOT_ALLOWED })
  return [...new Set(events ?? [])] as WebhookAction[] // Checked above.
}
