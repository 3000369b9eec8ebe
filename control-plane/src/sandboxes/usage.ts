/**
 * What is paid for, as intervals: a move closes what it ends and opens what it begins, in its own transaction.
 * A sandbox has at most one open interval (the index says so).
 */
import { SANDBOX_MOVES, type SandboxMove, type SandboxStatus } from '@warren/protocol'
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
  if (from.some((status) => USED_AS[status] !== 'nothing')) {
    const goesOn = await closeOther(tx, row.id, use)
    if (goesOn) return
  }
  if (use !== 'nothing') await open(tx, row, use)
}

/** Closes what is open, unless it is of this very kind (a pause that failed): then it goes on. */
async function closeOther(tx: Tx, sandboxId: string, use: UsageKind | 'nothing'): Promise<boolean> {
  const found = await tx
    .selectFrom('usage_intervals')
    .select(['id', 'kind'])
    .where('sandbox_id', '=', sandboxId)
    .where('ended_at', 'is', null)
    .executeTakeFirst()
  if (!found) return false
  if (found.kind === use) return true
  await tx
    .updateTable('usage_intervals')
    // Later than its start also when the transaction that closes it began before the one that opened it.
    .set((eb) => ({ ended_at: eb.fn<Date>('greatest', ['started_at', eb.fn('now')]) }))
    .where('id', '=', found.id)
    .execute()
  return false
}

async function open(tx: Tx, row: SandboxRow, kind: UsageKind): Promise<void> {
  const { id: sandbox_id, user_id, shape, mem_mib, disk_mib } = row
  await tx.insertInto('usage_intervals').values({ sandbox_id, user_id, kind, shape, mem_mib, disk_mib }).execute()
}
