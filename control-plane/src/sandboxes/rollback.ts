/**
 * Rolls back a create or a fork that failed, or whose process died.
 *
 *   1. The fence rises. A process that still works on the operation can no longer commit, and the host rejects requests
 *      that are still on their way.
 *   2. The host deletes the VM.
 *   3. The row ends in `failed`, and its memory is released.
 *
 * If the host does not confirm step 2, the row still ends in `failed` but keeps its reservation; reconcile.ts
 * deletes the VM and releases the memory later.
 */
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { endMove, FenceLost, takeOver } from './move.ts'

/** A caller waits for the response, so a slow deletion is left to reconcile.ts. */
const DELETE_LIMIT_MS = 5_000
const RETRY_MS = 1_000

type RollbackMove = 'createFailed' | 'forkAbandoned'

/** Returns false when the operation is no longer the one in `seen`: another process has taken it over or ended it. */
export async function rollBack(deps: Deps, seen: SandboxRow, move: RollbackMove, reason: string): Promise<boolean> {
  const row = await takeOver(deps.db, seen, deps.processId)
  if (!row) return false
  const confirmed = await deleteVm(deps, row)
  await deps.db
    .transaction()
    .execute((tx) => endMove(tx, row.id, move, row.fence, { reason, releasesMemory: confirmed }))
  return true
}

/**
 * Rolls back, and does not throw: the caller has another error to report. If the database is unreachable the rollback
 * is retried in the background until it succeeds. No other process would do it while this one, the owner, is alive.
 */
export async function rollBackOrRetry(deps: Deps, seen: SandboxRow, move: RollbackMove, reason: string): Promise<void> {
  try {
    await rollBack(deps, seen, move, reason)
  } catch (error) {
    if (error instanceof FenceLost) return // The sandbox was deleted in the meantime.
    deps.log.warn({ err: error, sandbox: seen.id }, 'failed to roll back create or fork, retrying')
    setTimeout(() => void retryRollback(deps, seen, move, reason), RETRY_MS).unref()
  }
}

/** Reads the row again, because the previous attempt may have raised the fence before it failed. */
async function retryRollback(deps: Deps, seen: SandboxRow, move: RollbackMove, reason: string): Promise<void> {
  const row = await deps.db
    .selectFrom('sandboxes')
    .selectAll()
    .where('id', '=', seen.id)
    .where('status', '=', seen.status)
    .where('owner', '=', deps.processId)
    .executeTakeFirst()
    .catch(() => seen) // Still unreachable: the next attempt fails as well and is retried.
  if (row) await rollBackOrRetry(deps, row, move, reason)
}

async function deleteVm(deps: Deps, row: SandboxRow): Promise<boolean> {
  try {
    const host = await deps.hosts.get(row.host_id)
    await host.deleteVm(row.id, row.fence, AbortSignal.timeout(DELETE_LIMIT_MS))
    return true
  } catch (error) {
    deps.log.warn({ err: error, sandbox: row.id, host: row.host_id }, 'host did not confirm the deletion of a VM')
    return false
  }
}
