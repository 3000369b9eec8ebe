/** The ledger: totals as hosts tell them. They never go back, whoever tells them and in whatever order it arrives. */
import type { HostCounts } from '@warren/protocol'
import { sql } from 'kysely'
import type { Db, Tx } from '../db/connect.ts'

export type Counted = HostCounts & { id: string }

/** Locked in the order of their ids, so that two processes cannot wait for each other in a circle. */
export async function recordCounts(db: Db | Tx, counts: readonly Counted[]): Promise<void> {
  if (counts.length === 0) return
  await sql`with told as materialized (
      select * from jsonb_to_recordset(${JSON.stringify(counts)}::jsonb)
        as told (id text, used_bytes bigint, ingress_bytes bigint)),
    behind as materialized (
      select s.id from sandboxes s join told on told.id = s.id
      where s.bandwidth_used_bytes < told.used_bytes or s.bandwidth_ingress_bytes < told.ingress_bytes
      order by s.id for no key update of s)
    update sandboxes s set
      bandwidth_used_bytes = greatest(s.bandwidth_used_bytes, told.used_bytes),
      bandwidth_ingress_bytes = greatest(s.bandwidth_ingress_bytes, told.ingress_bytes)
    from told, behind where s.id = behind.id and told.id = behind.id`.execute(db)
}
