/**
 * Pauses what has been idle for as long as its owner allowed.
 *
 * The database is the judge. A row is paused only if its last use plus its limit is over by the database's clock, and
 * every living process has written all uses that it saw up to that moment (guest/activity.ts). Both are conditions of
 * the statement that locks the row, and are looked at again if somebody else had it: a use that begins now either
 * has changed the row, and then it is not idle, or comes after us, and then it is refused because it is pausing.
 *
 * A process that fell silent is not waited for: what passed through it has ended with it, or will be written when it
 * wakes, and its last word was seconds old when the minutes of the limit began.
 *
 * Swept each second, and uses are written every two: `pausing` comes within 5 s of the end of the idle time (wire 2).
 * A pause that fails begins the idle time anew, so a full disk is not tried again each second.
 */
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import { DEAD_AFTER_S } from '../jobs/processes.ts'
import type { Sweep } from '../jobs/sweep.ts'
import { beginPause } from './pause.ts'

/** In one transaction; the rest a second later. */
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
    for (const { id, seconds } of paused) deps.log.info({ sandbox: id, seconds }, 'paused an idle sandbox')
  },
}

/** Rows that somebody else works on are not idle, or not ours: they are skipped, not waited for. */
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
