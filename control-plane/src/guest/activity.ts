/**
 * When a sandbox was last used (wire 2 says what counts), and the promise that auto-pause rests on.
 *
 * Uses are noted in memory and written every FLUSH_MS, so a row that is used all the time is not written for every
 * request. Each flush also says, for this process, up to which moment all its notes are written (`activity_at`): the
 * database's clock is read first, then the notes are taken, then both are written. A use that is under way counts as
 * used at every flush. So whoever finds `activity_at` of every living process past a moment knows of all uses up to it.
 *
 * What remains is the use that begins when the idle time is over or nearly so: it must not be noted in memory while
 * another process begins the pause. Such a use asks the database first (`postponeAutoPause`): an update of the row that only
 * succeeds while it is running. The pause is an update of the same row with the opposite condition (auto-pause.ts), so
 * one of the two sees the other: the use holds the pause off, or it is refused because the sandbox is pausing.
 */
import { sql } from 'kysely'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import type { Sweep } from '../jobs/sweep.ts'

const FLUSH_MS = 2_000
/** Covers the time between reading a row and using it, and a late flush. */
const NEAR_MS = 20_000

export type Activity = {
  recordUse(sandboxId: string): void
  /** From now until it is disposed of. */
  beginUse(sandboxId: string): { [Symbol.dispose](): void }
  /** How many milliseconds ago each was last used, of those used since the last call; 0 for what is under way. */
  drain(): Map<string, number>
  /** What was taken and could not be written. */
  putBack(taken: Map<string, number>): void
  /** How far the clock of the database is ahead of ours, as of the last flush. */
  databaseClockAheadMs: number
}

export function createActivity(): Activity {
  let noted = new Map<string, number>()
  const underWay = new Map<string, number>()
  const recordUse = (sandboxId: string) => void noted.set(sandboxId, performance.now())
  return {
    databaseClockAheadMs: 0,
    recordUse,
    beginUse(sandboxId) {
      underWay.set(sandboxId, (underWay.get(sandboxId) ?? 0) + 1)
      return {
        [Symbol.dispose]() {
          const left = underWay.get(sandboxId)! - 1
          if (left === 0) underWay.delete(sandboxId)
          else underWay.set(sandboxId, left)
          recordUse(sandboxId)
        },
      }
    },
    drain() {
      const now = performance.now()
      const ages = new Map([...noted].map(([id, at]) => [id, now - at]))
      for (const id of underWay.keys()) ages.set(id, 0)
      noted = new Map()
      return ages
    },
    putBack(taken) {
      const now = performance.now()
      for (const [id, age] of taken) noted.set(id, Math.max(noted.get(id) ?? 0, now - age))
    },
  }
}

/**
 * For a use that begins: gives whether it may. Without a query while the end of the idle time is far away, which a use
 * that was written within the last flushes guarantees.
 */
export async function postponeAutoPause(deps: Deps, sandbox: SandboxRow): Promise<boolean> {
  const { auto_pause_after_seconds: limit, last_active_at: since } = sandbox
  if (limit === null) return true
  const endsAt = (since?.getTime() ?? 0) + limit * 1000
  const now = deps.now().getTime() + deps.activity.databaseClockAheadMs
  if (now < endsAt - NEAR_MS) return true
  const held = await deps.db
    .updateTable('sandboxes')
    .set({ last_active_at: sql<Date>`now()` })
    .where('id', '=', sandbox.id)
    .where('status', '=', 'running')
    .executeTakeFirst()
  return held.numUpdatedRows > 0n
}

export const flushActivity: Sweep = {
  name: 'write-activity',
  everyMs: FLUSH_MS,
  async run(deps: Deps) {
    const { rows } = await sql<{ at: string; clock: Date }>`select now()::text as at, now() as clock`.execute(deps.db)
    const { at, clock } = rows[0]!
    deps.activity.databaseClockAheadMs = clock.getTime() - deps.now().getTime()
    const taken = deps.activity.drain()
    try {
      await write(deps, at, taken)
    } catch (error) {
      deps.activity.putBack(taken)
      throw error
    }
  },
}

/** In one order everywhere, so that two processes cannot wait for each other in a circle. */
async function write(deps: Deps, at: string, taken: Map<string, number>): Promise<void> {
  const ids = [...taken.keys()]
  const seconds = [...taken.values()].map((age) => age / 1000)
  await sql`with used as (
      update sandboxes set last_active_at = greatest(last_active_at, latest.at)
      from (select s.id, ${at}::timestamptz - make_interval(secs => seen.seconds) as at from sandboxes s
        join unnest(${ids}::text[], ${seconds}::float8[]) as seen (id, seconds)
          on s.id = seen.id order by s.id for no key update of s) latest
      where sandboxes.id = latest.id)
    update service_processes set activity_at = ${at}::timestamptz where id = ${deps.processId}`.execute(deps.db)
}
