/** The statements of the deliverer. Times are compared with `deps.now`, so that tests can advance them. */
import { WEBHOOK_FAILURES_MAX } from '@warren/protocol'
import { sql } from 'kysely'
import type { WebhookDeliveryRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { DEAD_AFTER_S } from '../jobs/processes.ts'
import type { PlanName } from '../users/plans.ts'

export type TakenEndpoint = { id: string; url: string; secret: string; plan: PlanName }
export type DueDelivery = Pick<WebhookDeliveryRow, 'id' | 'event_action' | 'subject' | 'payload' | 'attempts'> & {
  seq: number
}

/**
 * Makes this process the owner of active endpoints that have deliveries due and no live owner. `only`: of these endpoints;
 * otherwise of all.
 */
export async function takeEndpoints(
  deps: Deps,
  { only, except, limit }: { only?: string[]; except: string[]; limit: number },
): Promise<TakenEndpoint[]> {
  const { rows } = await sql<TakenEndpoint>`
    update webhook_endpoints e set owner = ${deps.processId} from users u
    where u.id = e.user_id and e.id in (
      select w.id from webhook_endpoints w
      where w.active and w.id <> all (${except}::uuid[]) and (${only ?? null}::uuid[] is null or w.id = any (${only ?? null}))
        and (w.owner is null or w.owner = ${deps.processId} or not exists (
          select from service_processes p
          where p.id = w.owner and p.seen_at > now() - make_interval(secs => ${DEAD_AFTER_S})))
        and (exists (select from webhook_deliveries d
            where d.endpoint_id = w.id and d.status = 'pending' and d.next_attempt_at is null)
          or exists (select from webhook_deliveries d
            where d.endpoint_id = w.id and d.status = 'pending' and d.next_attempt_at <= ${deps.now()}))
      limit ${limit} for no key update skip locked)
    returning e.id, e.url, e.secret, u.plan`.execute(deps.db)
  return rows
}

export async function releaseEndpoints(deps: Deps, ids: string[]): Promise<void> {
  await sql`update webhook_endpoints set owner = null
    where id = any (${ids}::uuid[]) and owner = ${deps.processId}`.execute(deps.db)
}

/** New deliveries and retries, up to `limit` of each so that neither displaces the other, in the order of events. */
export async function listDue(deps: Deps, endpointId: string, limit: number): Promise<DueDelivery[]> {
  const columns = sql`id, seq, event_action, subject, payload, attempts`
  const { rows } = await sql<DueDelivery>`
    (select ${columns} from webhook_deliveries
      where endpoint_id = ${endpointId} and status = 'pending' and next_attempt_at is null order by seq limit ${limit})
    union all
    (select ${columns} from webhook_deliveries
      where endpoint_id = ${endpointId} and status = 'pending' and next_attempt_at <= ${deps.now()}
      order by next_attempt_at, seq limit ${limit})`.execute(deps.db)
  return rows.sort((a, b) => a.seq - b.seq)
}

/** False also for an endpoint that was deleted, or that another process delivers to by now. */
export async function mayDeliver(deps: Deps, endpointId: string): Promise<boolean> {
  const { rows } = await sql`select from webhook_endpoints
    where id = ${endpointId} and active and owner = ${deps.processId}`.execute(deps.db)
  return rows.length > 0
}

/** `nextAttemptAt` is null when no retry is left, or when the delivery succeeded. */
export type AttemptResult = {
  id: string
  attempts: number
  error: string | null
  nextAttemptAt: Date | null
  at: Date
}

/**
 * Stores the results of attempts, and suspends endpoints with too many failed deliveries, in one statement. Returns the
 * endpoints that it suspended.
 */
export async function saveResults(deps: Deps, results: AttemptResult[]): Promise<string[]> {
  const rows = await deps.database.named<{ id: string; active: boolean }>('save-webhook-results', SAVE, [
    results.map(({ id }) => id),
    results.map(({ attempts }) => attempts),
    results.map(({ error }) => error),
    results.map(({ nextAttemptAt }) => nextAttemptAt),
    results.map(({ at }) => at),
    WEBHOOK_FAILURES_MAX,
  ])
  return rows.filter(({ active }) => !active).map(({ id }) => id)
}

const SAVE = `with results as (
    select * from unnest($1::uuid[], $2::int[], $3::text[], $4::timestamptz[], $5::timestamptz[])
      r (id, attempts, error, next_attempt_at, at)
  ), saved as (
    update webhook_deliveries d set
      attempts = r.attempts,
      last_error = coalesce(r.error, d.last_error),
      next_attempt_at = r.next_attempt_at,
      status = case when r.error is null then 'delivered' when r.next_attempt_at is null then 'failed' else 'pending' end,
      delivered_at = case when r.error is null then r.at end,
      completed_at = case when r.error is null or r.next_attempt_at is null then r.at end
    from results r where d.id = r.id and d.status = 'pending'
    returning d.endpoint_id, d.status
  ), failures as (
    select endpoint_id, count(*) as n from saved where status = 'failed' group by endpoint_id
  )
  update webhook_endpoints e set
    failure_count = e.failure_count + f.n, active = e.active and e.failure_count + f.n < $6
  from failures f where e.id = f.endpoint_id
  returning e.id, e.active`
