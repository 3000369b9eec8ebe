/** Writes traffic totals that hosts report. Totals never decrease, so the order in which reports arrive does not matter. */
import type { HostCounts } from '@warren/protocol'
import { sql } from 'kysely'
import type { Db, Tx } from '../db/connect.ts'

export type SandboxTraffic = HostCounts & { id: string }

/** Locks rows in the order of their ids, so that two processes cannot deadlock. */
export async function recordCounts(db: Db | Tx, counts: readonly SandboxTraffic[]): Promise<void> {
  if (counts.length === 0) return
  await sql`with reported as materialized (
      select * from jsonb_to_recordset(${JSON.stringify(counts)}::jsonb)
        as reported (id text, used_bytes bigint, ingress_bytes bigint)),
    behind as materialized (
      select s.id from sandboxes s join reported on reported.id = s.id
      where s.bandwidth_used_bytes < reported.used_bytes or s.bandwidth_ingress_bytes < reported.ingress_bytes
      order by s.id for no key update of s)
    update sandboxes s set
      bandwidth_used_bytes = greatest(s.bandwidth_used_bytes, reported.used_bytes),
      bandwidth_ingress_bytes = greatest(s.bandwidth_ingress_bytes, reported.ingress_bytes)
    from reported, behind where s.id = behind.id and reported.id = behind.id`.execute(db)
}
