/**
 * Pauses sandboxes that have been idle for as long as their owner allows.
 *
 * The database decides. A sandbox is paused only if, by the database's clock, the end of its idle time is in the past, and
 * the watermark of every live process is past that moment too, so that all uses up to it are written (guest/activity.ts).
 * Both are conditions of the statement that locks the row, so they are checked again if another transaction held the
 * row. A use that begins at the same time either has changed the row, which then is not idle, or waits for the lock and
 * then fails because the sandbox is pausing.
 *
 * A process without a recent heartbeat is not waited for: see docs/decisions/0021-auto-pause-protocol.md.
 *
 * The sweep runs every second and uses are written every two, so a sandbox is `pausing` within 5 s of the end of its
 * idle time. A pause that fails starts the idle time again, so a full disk does not cause an attempt every second.
 */
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import { DEAD_AFTER_S } from '../jobs/processes.ts'
import type { Sweep } from '../jobs/sweep.ts'
import { beginPause } from './pause.ts'

/** Bounds the transaction; the next sweep continues. */
const BATCH = 50

export const autoPause: Sweep = {
  name: 'auto-pause',
  everyMs: 1_000,
  async run(deps) {
    const paused = await deps.db.transaction().execute(async (tx) => {
      const idle = await lockIdle(tx)
      for (const { id, seconds } of idle) await beginPause(tx, id, 'auto-pause', `auto-pause: idle for ${seconds} s`)
      return idle
    })
    for (const { id, seconds } of paused) deps.log.info({ sandbox: id, seconds }, 'pausing an idle sandbox')
  },
}

/** Skips rows that another transaction has locked: they are in use, or another process is pausing them. */
async function lockIdle(tx: Tx): Promise<{ id: string; seconds: number }[]> {
  const { rows } = await sql<{ id: string; seconds: number }>`
    select s.id, s.auto_pause_after_seconds as seconds from sandboxes s
    where s.status = 'running' and s.auto_pause_after_seconds is not null
      and s.last_active_at + make_interval(secs => s.auto_pause_after_seconds) <= now()
      and not exists (select from service_processes p
        where p.seen_at > now() - make_interval(secs => ${DEAD_AFTER_S})
          and p.activity_at < s.last_active_at + make_interval(secs => s.auto_pause_after_seconds))
    order by s.id limit ${BATCH} for no key update of s skip locked`.execute(tx)
  return rows
}
