/**
 * Rolls back creates and forks that no process works on any more: their process died, or could not reach the database
 * to end them. A fork has an owner until its copy exists and its job is added; until then no client knows of it.
 */
import { sql } from 'kysely'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { DEAD_AFTER_S } from '../jobs/processes.ts'
import type { Sweep } from '../jobs/sweep.ts'
import { FenceLost } from './move.ts'
import { rollBack } from './rollback.ts'

/** Well above the sum of all time limits of a create. */
const STUCK_AFTER_S = 120
const BATCH = 100

export const failOrphanedCreates: Sweep = {
  name: 'fail-orphaned-creates',
  everyMs: 1_000,
  run: (deps) => rollBackOrphanedCreates(deps),
}

/**
 * Rollbacks in progress in this process, by sandbox id. A create that needs a name held by an orphan must wait for the
 * rollback that the sweep may have begun a moment earlier.
 */
const inProgress = new Map<string, { userId: string; rollback: Promise<void> }>()

/** For one user or, in the sweep, for all. Resolves when every rollback has ended, whether it began here or earlier. */
export async function rollBackOrphanedCreates(deps: Deps, userId?: string): Promise<void> {
  const begunEarlier = [...inProgress.values()].flatMap((one) => (userId === one.userId ? one.rollback : []))
  const orphans = await deps.db
    .selectFrom('sandboxes')
    .selectAll()
    .where('status', 'in', ['creating', 'forking'])
    .where('owner', 'is not', null)
    .where(isOrphaned)
    .$if(userId !== undefined, (query) => query.where('user_id', '=', userId!))
    .limit(BATCH)
    .execute()
  await Promise.all([...begunEarlier, ...orphans.map((row) => trackRollback(deps, row))])
}

const isOrphaned = sql<boolean>`(created_at < now() - make_interval(secs => ${STUCK_AFTER_S}) or not exists (
  select from service_processes p
  where p.id = sandboxes.owner and p.seen_at > now() - make_interval(secs => ${DEAD_AFTER_S})))`

function trackRollback(deps: Deps, row: SandboxRow): Promise<void> {
  const rollback = rollBackOrphan(deps, row).finally(() => inProgress.delete(row.id))
  inProgress.set(row.id, { userId: row.user_id, rollback })
  return rollback
}

async function rollBackOrphan(deps: Deps, row: SandboxRow): Promise<void> {
  const move = row.status === 'forking' ? 'forkAbandoned' : 'createFailed'
  try {
    const done = await rollBack(deps, row, move, 'the service stopped while it was creating the sandbox')
    if (done) deps.log.warn({ sandbox: row.id, owner: row.owner }, 'rolled back an orphaned create or fork')
  } catch (error) {
    // FenceLost: the sandbox was deleted, or another process has rolled it back, in the meantime.
    if (!(error instanceof FenceLost)) throw error
  }
}
