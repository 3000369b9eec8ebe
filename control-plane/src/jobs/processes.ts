/**
 * Tracks which processes are alive. Every process writes a heartbeat each second that names the worker pools it runs. A
 * process without a heartbeat for DEAD_AFTER_S counts as dead.
 *
 * A job that is locked by a pool which no live process names is released to the others. This covers a process killed
 * at any moment, even before its first heartbeat. A process that was only suspended finds its jobs taken by others when
 * it continues, and the fence prevents it from committing.
 */
import { sql } from 'kysely'
import type { Deps } from '../deps.ts'
import type { Sweep } from './sweep.ts'

export const HEARTBEAT_MS = 1_000
export const DEAD_AFTER_S = 4

/** Also tells which secrets keys this process has, and learns of a rotation (secrets/rotate.ts). */
export async function writeHeartbeat(deps: Deps, pools: string[]): Promise<void> {
  const keys = deps.secrets.keyIds()
  const { rows } = await sql<{ current: string | null }>`insert into service_processes (id, pools, secret_keys)
    values (${deps.processId}, ${pools}, ${keys})
    on conflict (id) do update set pools = excluded.pools, secret_keys = excluded.secret_keys, seen_at = now()
    returning (select id from secret_keys where current) as current`.execute(deps.db)
  const current = rows[0]?.current
  if (current == null || current === keys[0] || (await deps.secrets.useKey(current))) return
  deps.log.error({ key: current }, 'this process does not have the secrets key that the database names as current')
}

export async function removeProcess(deps: Deps): Promise<void> {
  await deps.db.deleteFrom('service_processes').where('id', '=', deps.processId).execute()
}

export const releaseJobsOfDeadProcesses: Sweep = {
  name: 'release-jobs-of-dead-processes',
  everyMs: HEARTBEAT_MS,
  async run(deps) {
    const dead = await sql<{ id: string }>`delete from service_processes
      where seen_at < now() - make_interval(secs => ${DEAD_AFTER_S}) returning id`.execute(deps.db)
    for (const { id } of dead.rows) deps.log.warn({ process: id }, 'process stopped sending heartbeats')

    const orphaned = await sql<{ pool: string }>`select distinct locked_by as pool from graphile_worker.jobs
      where locked_at < now() - make_interval(secs => ${DEAD_AFTER_S})
        and locked_by <> all (select unnest(pools) from service_processes)`.execute(deps.db)
    if (orphaned.rows.length === 0) return
    const pools = orphaned.rows.map((row) => row.pool)
    await sql`select graphile_worker.force_unlock_workers(${pools}::text[]),
      pg_notify('jobs:insert', '{"count":1}')`.execute(deps.db)
    deps.log.warn({ pools }, 'released the jobs of a dead process')
  },
}
