/**
 * Writes traffic totals that hosts report. Totals never decrease, so the order in which reports arrive does not matter. What
 * a total grows by is added to the current hour in the same statement, so the hours of a sandbox add up to its totals.
 */
import type { HostCounts } from '@warren/protocol'
import { sql } from 'kysely'
import type { Db, Tx } from '../db/connect.ts'

export type SandboxTraffic = HostCounts & { id: string }

/**
 * Locks rows in the order of their ids, so that two processes cannot deadlock. `behind` has the values of the locked rows,
 * even if another process changed them after this statement began.
 */
export async function recordCounts(db: Db | Tx, counts: readonly SandboxTraffic[]): Promise<void> {
  if (counts.length === 0) return
  await sql`with reported as materialized (
      select * from jsonb_to_recordset(${JSON.stringify(counts)}::jsonb)
        as reported (id text, used_bytes bigint, ingress_bytes bigint)),
    behind as materialized (
      select s.id, s.user_id, greatest(0, reported.used_bytes - s.bandwidth_used_bytes) as egress_bytes,
        greatest(0, reported.ingress_bytes - s.bandwidth_ingress_bytes) as ingress_bytes
      from sandboxes s join reported on reported.id = s.id
      where s.bandwidth_used_bytes < reported.used_bytes or s.bandwidth_ingress_bytes < reported.ingress_bytes
      order by s.id for no key update of s),
    added as (
      insert into bandwidth_hours as h (user_id, hour, sandbox_id, egress_bytes, ingress_bytes, first_at, last_at)
      select user_id, date_trunc('hour', now(), 'UTC'), id, egress_bytes, ingress_bytes, now(), now() from behind
      on conflict (user_id, hour, sandbox_id) do update set
        egress_bytes = h.egress_bytes + excluded.egress_bytes, ingress_bytes = h.ingress_bytes + excluded.ingress_bytes,
        first_at = least(h.first_at, excluded.first_at), last_at = greatest(h.last_at, excluded.last_at))
    update sandboxes s set
      bandwidth_used_bytes = greatest(s.bandwidth_used_bytes, reported.used_bytes),
      bandwidth_ingress_bytes = greatest(s.bandwidth_ingress_bytes, reported.ingress_bytes)
    from reported, behind where s.id = behind.id and reported.id = behind.id`.execute(db)
}
