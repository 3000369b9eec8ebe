/**
 * What is paid for, as intervals: a move closes what it ends and opens what it begins, in its own transaction.
 * A sandbox has at most one open interval (the index says so).
 */
import { SANDBOX_MOVES, type SandboxMove, type SandboxStatus } from '@warren/protocol'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { SandboxRow, UsageKind } from '../db/schema.ts'

/**
 * `keeps`: whatever was open goes on. While it pauses a VM still holds all it had; while it resumes it holds no more
 * than before. Who has asked for the end of a sandbox pays nothing from then on.
 */
const USED_AS = {
  creating: 'nothing',
  running: 'running',
  pausing: 'keeps',
  paused: 'paused',
  resuming: 'keeps',
  forking: 'nothing',
  error: 'error',
  destroying: 'nothing',
  destroyed: 'nothing',
  failed: 'nothing',
} as const satisfies Record<SandboxStatus, UsageKind | 'keeps' | 'nothing'>

export async function recordUsage(tx: Tx, move: SandboxMove, row: SandboxRow): Promise<void> {
  const { from, to } = SANDBOX_MOVES[move]
  const use = USED_AS[to]
  if (use === 'keeps') return
  if (use !== 'nothing') return change(tx, row, use)
  if (from.some((status) => USED_AS[status] !== 'nothing')) await close(tx, row.id)
}

async function close(tx: Tx, sandboxId: string): Promise<void> {
  await sql`update usage_intervals set ended_at = ${END} where sandbox_id = ${sandboxId} and ended_at is null`.execute(
    tx,
  )
}

/**
 * Closes what is open and opens the new kind, unless it is of this very kind (a pause that failed): then it goes on.
 * The insert reads what was closed, so it comes after it and the index is content.
 */
async function change(tx: Tx, row: SandboxRow, kind: UsageKind): Promise<void> {
  const { id, user_id, shape, mem_mib, disk_mib } = row
  await sql`with closed as (
      update usage_intervals set ended_at = ${END}
      where sandbox_id = ${id} and ended_at is null and kind <> ${kind} returning id)
    insert into usage_intervals (sandbox_id, user_id, kind, shape, mem_mib, disk_mib)
    select ${id}, ${user_id}, ${kind}, ${shape}, ${mem_mib}, ${disk_mib}
    from (select count(*) from closed) after_closing
    where not exists (
      select from usage_intervals where sandbox_id = ${id} and ended_at is null and kind = ${kind})`.execute(tx)
}

/** Later than its start also when the transaction that closes it began before the one that opened it. */
const END = sql`greatest(started_at, now())`
