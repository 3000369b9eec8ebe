/**
 * Takes back a create or a fork that failed, or whose process died.
 *
 * The fence rises first: whoever still works on it is locked out, and the host refuses a request that was on its way.
 * Then the host deletes what it made of it, then the row ends in `failed`. Its memory is given back when the host has
 * confirmed; if the host cannot be reached the row ends all the same, and reconcile.ts gives back later.
 */
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { endMove, FenceLost, takeOver } from './move.ts'
import { releaseMemory } from './placement.ts'

/** The caller waits; what takes longer is left to reconcile.ts. */
const DELETE_LIMIT_MS = 5_000
const AGAIN_MS = 1_000

type Taken = 'createFailed' | 'forkAbandoned'

/** Gives whether it was ours to take back: an operation that somebody else holds by now is theirs. */
export async function rollBack(deps: Deps, seen: SandboxRow, move: Taken, reason: string): Promise<boolean> {
  const row = await takeOver(deps.db, seen, deps.processId)
  if (!row) return false
  const confirmed = await deleteVm(deps, row)
  await deps.db.transaction().execute(async (tx) => {
    await endMove(tx, row.id, move, row.fence, { reason })
    if (confirmed) await releaseMemory(tx, row.id)
  })
  return true
}

/**
 * The same for one whose caller waits for another answer. A database that does not answer now is asked again until it
 * does: while this process lives, nobody else would take the operation from it.
 */
export async function rollBackOrRetry(deps: Deps, seen: SandboxRow, move: Taken, reason: string): Promise<void> {
  try {
    await rollBack(deps, seen, move, reason)
  } catch (error) {
    if (error instanceof FenceLost) return // Deleted meanwhile.
    deps.log.warn({ err: error, sandbox: seen.id }, 'could not take back an operation, trying again')
    setTimeout(() => void retryRollback(deps, seen, move, reason), AGAIN_MS).unref()
  }
}

/** The first attempt may have come as far as to raise the fence. */
async function retryRollback(deps: Deps, seen: SandboxRow, move: Taken, reason: string): Promise<void> {
  const row = await deps.db
    .selectFrom('sandboxes')
    .selectAll()
    .where('id', '=', seen.id)
    .where('status', '=', seen.status)
    .where('owner', '=', deps.processId)
    .executeTakeFirst()
    .catch(() => seen)
  if (row) await rollBackOrRetry(deps, row, move, reason)
}

async function deleteVm(deps: Deps, row: SandboxRow): Promise<boolean> {
  try {
    const host = await deps.hosts.get(row.host_id)
    await host.deleteVm(row.id, row.fence, AbortSignal.timeout(DELETE_LIMIT_MS))
    return true
  } catch (error) {
    deps.log.warn({ err: error, sandbox: row.id, host: row.host_id }, 'the host did not confirm a deletion')
    return false
  }
}
