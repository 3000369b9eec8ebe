/**
 * Records when sandboxes are used, for auto-pause (sandboxes/auto-pause.ts). An exec, a file transfer, process input and
 * output, and bytes through a shell or tunnel are uses; reads of status or metrics and idle connections are not.
 *
 * Uses are recorded in memory and written every FLUSH_MS, so that a busy sandbox does not cause a write per request. A
 * flush also writes the watermark of this process, `activity_at`: all its uses up to that moment are written.
 *
 *   1. Read the database's clock. This becomes the watermark.
 *   2. Take the recorded uses. A use in progress counts as used now.
 *   3. Write the uses and the watermark in one statement.
 *
 * When the watermark of every live process is past a moment, the database therefore has all uses up to that moment.
 *
 * A use that begins when the idle time is over, or nearly so, cannot rely on the next flush: another process may
 * already have begun the pause. It first updates the row, on condition that the sandbox is running
 * (`postponeAutoPause`). The pause updates the same row on the opposite condition, so one of them sees the other: either
 * the pause is postponed, or the use fails because the sandbox is pausing.
 *
 * The whole protocol and its limits: docs/decisions/0021-auto-pause-protocol.md.
 */
import { sql } from 'kysely'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import type { Sweep } from '../jobs/sweep.ts'

const FLUSH_MS = 2_000
/**
 * A use that begins within this time of the end of the idle time updates the row. It must exceed the error of the clock
 * comparison below, and the time until a process that was suspended has written its next heartbeat.
 */
const NEAR_END_MS = 20_000

export type Activity = {
  /** The clock of recorded uses, in milliseconds. Monotonic. */
  now(): number
  recordUse(sandboxId: string): void
  /** The sandbox counts as in use until the result is disposed. */
  beginUse(sandboxId: string): { [Symbol.dispose](): void }
  /** Takes the time of the last use, by `now()`, of each sandbox that was used since the previous call. */
  drain(): Map<string, number>
  /** Records drained uses again, after they could not be written. */
  putBack(uses: Map<string, number>): void
  /** How far the database's clock is ahead of `deps.now()`, measured by the last flush. */
  databaseClockAheadMs: number
}

export function createActivity(now: () => number = () => performance.now()): Activity {
  let lastUses = new Map<string, number>()
  const usesInProgress = new Map<string, number>()
  const recordUse = (sandboxId: string) => void lastUses.set(sandboxId, now())
  return {
    databaseClockAheadMs: 0,
    now,
    recordUse,
    beginUse(sandboxId) {
      usesInProgress.set(sandboxId, (usesInProgress.get(sandboxId) ?? 0) + 1)
      return {
        [Symbol.dispose]() {
          const remaining = usesInProgress.get(sandboxId)! - 1
          if (remaining === 0) usesInProgress.delete(sandboxId)
          else usesInProgress.set(sandboxId, remaining)
          recordUse(sandboxId)
        },
      }
    },
    drain() {
      const drained = lastUses
      lastUses = new Map()
      for (const id of usesInProgress.keys()) drained.set(id, now())
      return drained
    },
    putBack(uses) {
      for (const [id, at] of uses) lastUses.set(id, Math.max(lastUses.get(id) ?? at, at))
    },
  }
}

/**
 * For a use that begins: returns whether the sandbox is running and stays so. Makes no query while the end of the idle
 * time is far away, which is the usual case for a sandbox that is used regularly.
 */
export async function postponeAutoPause(deps: Deps, sandbox: SandboxRow): Promise<boolean> {
  const { auto_pause_after_seconds: idleLimitS, last_active_at: lastActiveAt } = sandbox
  if (idleLimitS === null) return true
  const idleEndsMs = (lastActiveAt?.getTime() ?? 0) + idleLimitS * 1000
  const databaseNowMs = deps.now().getTime() + deps.activity.databaseClockAheadMs
  if (databaseNowMs < idleEndsMs - NEAR_END_MS) return true
  const updated = await deps.db
    .updateTable('sandboxes')
    .set({ last_active_at: sql<Date>`now()` })
    .where('id', '=', sandbox.id)
    .where('status', '=', 'running')
    .executeTakeFirst()
  return updated.numUpdatedRows > 0n
}

export const flushActivity: Sweep = {
  name: 'flush-activity',
  everyMs: FLUSH_MS,
  runOnStop: true,
  async run(deps) {
    // Taken before the query: a slow query then makes uses look later than they were, never earlier.
    const startedAt = deps.activity.now()
    const { rows } = await sql<{ at: string; clock: Date }>`select now()::text as at, now() as clock`.execute(deps.db)
    const { at, clock } = rows[0]!
    deps.activity.databaseClockAheadMs = clock.getTime() - deps.now().getTime()
    const uses = deps.activity.drain()
    try {
      await writeUses(deps, at, startedAt, uses)
    } catch (error) {
      deps.activity.putBack(uses)
      throw error
    }
  },
}

/** Locks rows in the order of their ids, so that flushes of several processes cannot deadlock. */
async function writeUses(deps: Deps, at: string, startedAt: number, uses: Map<string, number>): Promise<void> {
  const ids = [...uses.keys()]
  const offsetsS = [...uses.values()].map((usedAt) => (usedAt - startedAt) / 1000)
  await sql`with used as (
      update sandboxes set last_active_at = greatest(last_active_at, latest.at)
      from (select s.id, ${at}::timestamptz + make_interval(secs => uses.offset_s) as at from sandboxes s
        join unnest(${ids}::text[], ${offsetsS}::float8[]) as uses (id, offset_s)
          on s.id = uses.id order by s.id for no key update of s) latest
      where sandboxes.id = latest.id)
    update service_processes set activity_at = ${at}::timestamptz where id = ${deps.processId}`.execute(deps.db)
}
