/**
 * Counts sandboxes for the caps of plans (users/caps.ts). Paused sandboxes count as concurrent. A create in progress
 * counts towards both caps; one that failed counts towards neither.
 */
import { isTerminal, SANDBOX_STATUSES } from '@warren/protocol'
import { sql } from 'kysely'
import type { Db, Tx } from '../db/connect.ts'
import { type CappedResource, takeCount } from '../users/caps.ts'

const LIVE = SANDBOX_STATUSES.filter((status) => !isTerminal(status))

export const SANDBOX_CAPS: CappedResource = { kind: 'sandboxes', noun: 'sandbox', countLive, countDay }

/**
 * Inside a transaction that creates, resumes or forks, the count also takes the lock on the row of counts, which must come
 * before the host's (reservations.ts).
 */
async function countLive(db: Db | Tx, userId: string): Promise<number> {
  const counts = await db
    .selectFrom('sandbox_counts')
    .select(LIVE)
    .where('user_id', '=', userId)
    .$if(db.isTransaction, (query) => query.forUpdate())
    .executeTakeFirst()
  return LIVE.reduce((sum, status) => sum + (counts?.[status] ?? 0), 0)
}

/** Stops counting at the cap. */
async function countDay(db: Db | Tx, userId: string, max: number): Promise<number> {
  return takeCount(
    await sql<{ n: number }>`select count(*) as n from (
      select from sandboxes where user_id = ${userId} and created_at > now() - interval '24 hours'
        and (running_at is not null or status in ('creating', 'forking')
          or (forked_from is not null and status <> 'failed'))
      limit ${max}) counted`.execute(db),
  )
}
