/**
 * When a sandbox was last used (wire 2 says what counts). Noted in memory by every exec and transfer, and written by
 * a sweep: a row that is used all the time is written every few seconds, not for every request.
 */
import { sql } from 'kysely'
import type { Deps } from '../deps.ts'
import type { Sweep } from '../jobs/sweep.ts'

/** Auto-pause counts in minutes. */
const FLUSH_MS = 5_000

export type Activity = {
  note(sandboxId: string): void
  /** Notes now, again and again while it lasts, and once more when it ends. */
  during(sandboxId: string): { [Symbol.dispose](): void }
  /** What was noted since the last call. */
  take(): Map<string, Date>
}

export function createActivity(): Activity {
  let noted = new Map<string, Date>()
  const note = (sandboxId: string) => void noted.set(sandboxId, new Date())
  return {
    note,
    during(sandboxId) {
      note(sandboxId)
      const timer = setInterval(() => note(sandboxId), FLUSH_MS).unref()
      return {
        [Symbol.dispose]() {
          clearInterval(timer)
          note(sandboxId)
        },
      }
    },
    take() {
      const taken = noted
      noted = new Map()
      return taken
    },
  }
}

export const writeActivity: Sweep = {
  name: 'write-activity',
  everyMs: FLUSH_MS,
  async run(deps: Deps) {
    const noted = [...deps.activity.take()]
    if (noted.length === 0) return
    // In one order everywhere, so that two processes cannot wait for each other in a circle.
    await sql`update sandboxes set last_active_at = greatest(last_active_at, latest.at)
      from (select s.id, seen.at from sandboxes s
        join unnest(${noted.map(([id]) => id)}::text[], ${noted.map(([, at]) => at)}::timestamptz[]) as seen (id, at)
          on s.id = seen.id order by s.id for no key update of s) latest
      where sandboxes.id = latest.id`.execute(deps.db)
  },
}
