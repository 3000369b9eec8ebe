/**
 * Usage intervals, from which users are billed. A move closes the interval that it ends and opens the one that it
 * begins, in its own transaction. A sandbox has at most one open interval, which a unique index enforces. The next
 * interval begins where the last one ended, so there are neither gaps nor overlaps. A change of size splits the open
 * interval (a trigger, migration 0010).
 */
import { findCpuQuotaPct, SANDBOX_MOVES, type SandboxMove, type SandboxStatus } from '@warren/protocol'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { SandboxRow, UsageKind } from '../db/schema.ts'

/**
 * `unchanged` leaves the open interval open: a pausing VM still uses everything it had, and a resuming sandbox is charged
 * as before until it runs. A sandbox is free of charge from the moment of its deletion.
 */
const USAGE_BY_STATUS = {
  creating: 'nothing',
  running: 'running',
  pausing: 'unchanged',
  paused: 'paused',
  resuming: 'unchanged',
  forking: 'nothing',
  error: 'error',
  destroying: 'nothing',
  destroyed: 'nothing',
  failed: 'nothing',
} as const satisfies Record<SandboxStatus, UsageKind | 'unchanged' | 'nothing'>

export async function recordUsage(tx: Tx, move: SandboxMove, row: SandboxRow): Promise<void> {
  const { from, to } = SANDBOX_MOVES[move]
  const usage = USAGE_BY_STATUS[to]
  if (usage === 'unchanged') return
  if (usage !== 'nothing') return switchInterval(tx, row, usage)
  if (from.some((status) => USAGE_BY_STATUS[status] !== 'nothing')) await closeInterval(tx, row.id)
}

async function closeInterval(tx: Tx, sandboxId: string): Promise<void> {
  await sql`update usage_intervals set ${END} where sandbox_id = ${sandboxId} and ended_at is null`.execute(tx)
}

/**
 * Closes the open interval and opens one of the new kind. If the open interval is of this kind already, after a failed
 * pause, it stays open. The insert reads the closed rows so that it runs after the update; otherwise the unique index
 * would see two open intervals.
 */
async function switchInterval(tx: Tx, row: SandboxRow, kind: UsageKind): Promise<void> {
  const { id, user_id, shape, mem_mib, disk_mib } = row
  const cpuPct = findCpuQuotaPct(row)
  await sql`with closed as (
      update usage_intervals set ${END}
      where sandbox_id = ${id} and ended_at is null and kind <> ${kind} returning ended_at)
    insert into usage_intervals
      (sandbox_id, user_id, kind, shape, cpu_pct, mem_mib, disk_mib, billable, started_at,
        charged_until)
    select ${id}, ${user_id}, ${kind}, ${shape}, ${cpuPct}, ${mem_mib}, ${disk_mib},
      (select is_charged(plan) from users where id = ${user_id}), began.at, began.at
    from (select coalesce(max(ended_at), now()) as at from closed) began
    where not exists (
      select from usage_intervals where sandbox_id = ${id} and ended_at is null and kind = ${kind})`.execute(tx)
}

/** Never before what has been charged, even if the closing transaction began before the charge. */
const END = sql`ended_at = greatest(charged_until, now()), settled = (charged_until >= now())`
