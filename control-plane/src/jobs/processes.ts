/**
 * Who is alive. Every process writes a row each second; one that has been silent for some seconds is dead, and
 * whoever sees it first frees the jobs it held. A process that was only stopped and wakes again finds its row gone
 * and its jobs given to others: the fence refuses what it still tries to commit.
 */
import { sql } from 'kysely'
import type { Deps } from '../deps.ts'
import type { Sweep } from './sweep.ts'

export const HEARTBEAT_MS = 1_000
export const DEAD_AFTER_S = 5

export async function beat(deps: Deps, pools: string[]): Promise<void> {
  await sql`insert into service_processes (id, pools) values (${deps.processId}, ${pools})
    on conflict (id) do update set pools = excluded.pools, seen_at = now()`.execute(deps.db)
}

export async function leave(deps: Deps): Promise<void> {
  await deps.db.deleteFrom('service_processes').where('id', '=', deps.processId).execute()
}

export const freeDeadProcesses: Sweep = {
  name: 'free-dead-processes',
  everyMs: HEARTBEAT_MS,
  async run(deps) {
    const dead = await deps.db.transaction().execute(async (tx) => {
      const { rows } = await sql<{ id: string; pools: string[] }>`
        delete from service_processes where id in (
          select id from service_processes
          where seen_at < now() - make_interval(secs => ${DEAD_AFTER_S}) for update skip locked)
        returning id, pools`.execute(tx)
      const pools = rows.flatMap((row) => row.pools)
      if (pools.length > 0) await sql`select graphile_worker.force_unlock_workers(${pools}::text[])`.execute(tx)
      return rows
    })
    for (const { id } of dead) deps.log.warn({ process: id }, 'a process fell silent, its jobs are free again')
  },
}
