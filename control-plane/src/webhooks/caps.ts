/** Counts webhook endpoints for the caps of plans. */
import { sql } from 'kysely'
import { type CappedResource, takeCount } from '../users/caps.ts'

export const WEBHOOK_CAPS: CappedResource = {
  kind: 'webhook_endpoints',
  noun: 'webhook endpoint',
  countLive: async (db, userId) =>
    takeCount(
      await sql<{ n: number }>`select count(*) as n from webhook_endpoints where user_id = ${userId}`.execute(db),
    ),
}
