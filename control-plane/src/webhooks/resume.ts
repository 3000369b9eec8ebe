/** Starts deliveries to a suspended endpoint again, with those that wait, and forgets its failures. */
import type { WebhookEndpointView } from '@warren/protocol'
import { sql } from 'kysely'
import type { Deps } from '../deps.ts'
import { getWebhook, viewEndpoint } from './queries.ts'

export async function resumeWebhook(deps: Deps, userId: string, id: string): Promise<WebhookEndpointView> {
  await getWebhook(deps.db, userId, id)
  await sql`with resumed as (
      update webhook_endpoints set active = true, failure_count = 0 where id = ${id} returning id)
    select pg_notify('webhook_deliveries', id::text) from resumed`.execute(deps.db)
  return viewEndpoint(await getWebhook(deps.db, userId, id))
}
