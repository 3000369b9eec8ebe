/**
 * Creates and forks that nobody works on any more: their process died, or could not reach the database to end them.
 * A fork has an owner until its copy is there and its job is added; before that nobody was told of it.
 */
import { sql } from 'kysely'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { DEAD_AFTER_S } from '../jobs/processes.ts'
import type { Sweep } from '../jobs/sweep.ts'
import { FenceLost } from './move.ts'
import { rollBack } from './rollback.ts'

/** Far more than a create takes with all its limits. */
const STUCK_AFTER_S = 120

export const failOrphanedCreates: Sweep = {
  name: 'fail-orphaned-creates',
  everyMs: 1_000,
  run: async (deps) => void (await rollBackOrphanedCreates(deps)),
}

/** Under way in this process: the sweep may be a moment ahead of a create that wants the same name. */
const ending = new Map<string, { userId: string; work: Promise<boolean> }>()

/** Of one user or of all; gives how many were ended, those that were being ended already included. */
export async function rollBackOrphanedCreates(deps: Deps, userId?: string): Promise<number> {
  const underWay = [...ending.values()].flatMap((one) => (userId === one.userId ? one.work : []))
  const orphans = await deps.db
    .selectFrom('sandboxes')
    .selectAll()
    .where('status', 'in', ['creating', 'forking'])
    .where('owner', 'is not', null)
    .where(orphaned)
    .$if(userId !== undefined, (query) => query.where('user_id', '=', userId!))
    .limit(100)
    .execute()
  const ended = await Promise.all([...underWay, ...orphans.map((row) => endOnce(deps, row))])
  return ended.filter(Boolean).length
}

const orphaned = sql<boolean>`(created_at < now() - make_interval(secs => ${STUCK_AFTER_S}) or not exists (
  select from service_processes p
  where p.id = sandboxes.owner and p.seen_at > now() - make_interval(secs => ${DEAD_AFTER_S})))`

function endOnce(deps: Deps, row: SandboxRow): Promise<boolean> {
  const work = end(deps, row).finally(() => ending.delete(row.id))
  ending.set(row.id, { userId: row.user_id, work })
  return work
}

async function end(deps: Deps, row: SandboxRow): Promise<boolean> {
  try {
    const ended = await rollBack(
      deps,
      row,
      row.status === 'forking' ? 'forkAbandoned' : 'createFailed',
      'the service stopped while it was creating the sandbox',
    )
    if (ended) deps.log.warn({ sandbox: row.id, owner: row.owner }, 'ended a create or a fork that nobody worked on')
    return ended
  } catch (error) {
    // Deleted, or taken by another process, in the meantime.
    if (error instanceof FenceLost) return false
    throw error
  }
}
