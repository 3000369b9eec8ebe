/**
 * The only code that writes a sandbox's status.
 *
 * A move is one guarded statement: of two racing callers one changes the row, the other finds it changed and gets 409.
 * A move that begins an operation raises the fence and hands the new number to whoever does the work. A move that
 * ends it commits only with that number: a worker that was thought dead and wakes up later is refused.
 * Its event is written by the same statement; what is paid for follows from the move (usage.ts), in its transaction.
 */
import { wrongState } from '@warren/kit/failure'
import {
  type EventActor,
  expectedStatus,
  isTerminal,
  SANDBOX_MOVES,
  type SandboxMove,
  type SandboxStatus,
} from '@warren/protocol'
import { sql } from 'kysely'
import type { Db, Tx } from '../db/connect.ts'
import type { SandboxRow } from '../db/schema.ts'
import { deleteEnvs } from './envs.ts'
import { recordUsage } from './usage.ts'

type Begins = { [M in SandboxMove]: (typeof SANDBOX_MOVES)[M]['fence'] extends 'begins' ? M : never }[SandboxMove]
type Ends = Exclude<SandboxMove, Begins>
export type Change = {
  reason?: string | undefined
  set?: Partial<Pick<SandboxRow, 'ip' | 'host_id' | 'spawn_ms' | 'generation'>>
}
/** Who begins an operation is the actor of its end as well. */
export type Beginning = Change & { actor?: EventActor }

/** Thrown, never returned: a job that ends normally would delete the row another process works on (platform 2.5). */
export class FenceLost extends Error {
  override name = 'FenceLost'
  constructor(id: string, move: SandboxMove, fence: number) {
    super(`${move} of ${id} is refused: operation ${fence} is no longer the one under way`)
  }
}

/** Begins an operation. Gives the row with its new fence, or throws 409 with the status it met. */
export async function beginMove(tx: Tx, id: string, move: Begins, change: Beginning = {}): Promise<SandboxRow> {
  const row = await update(tx, id, move, { actor: 'user', ...change }, undefined)
  if (row) return row
  const found = await tx.selectFrom('sandboxes').select('status').where('id', '=', id).executeTakeFirst()
  throw wrongState(found?.status ?? 'destroyed', expectedStatus(move))
}

/** Ends the operation that holds `fence`, or throws FenceLost. */
export async function endMove(tx: Tx, id: string, move: Ends, fence: number, change: Change = {}): Promise<SandboxRow> {
  const row = await update(tx, id, move, change, fence)
  if (!row) throw new FenceLost(id, move, fence)
  return row
}

async function update(tx: Tx, id: string, move: SandboxMove, change: Beginning, fence: number | undefined) {
  const { from, to, fence: role } = SANDBOX_MOVES[move]
  const row = await tx
    .with('before', (db) =>
      db
        .selectFrom('sandboxes')
        .select(['id', 'status', 'status_since'])
        .where('id', '=', id)
        .where('status', 'in', [...from])
        .$if(fence !== undefined, (query) => query.where('fence', '=', fence!))
        .forNoKeyUpdate(),
    )
    .with('moved', (db) =>
      db
        .updateTable('sandboxes')
        .from('before')
        .set({
          ...change.set,
          ...stamps(to, move),
          status: to,
          status_since: sql<Date>`now()`,
          status_reason: change.reason ?? (KEEPS_REASON.has(move) ? sql<string | null>`status_reason` : null),
          ...(change.actor ? { status_actor: change.actor } : {}),
          ...(role === 'begins' ? { fence: sql<number>`fence + 1` } : {}),
        })
        .whereRef('sandboxes.id', '=', 'before.id')
        .returningAll('sandboxes'),
    )
    .with('noted', (db) =>
      db
        .insertInto('sandbox_events')
        .columns(['sandbox_id', 'actor', 'from_status', 'to_status', 'reason', 'duration_ms'])
        .expression((eb) =>
          eb
            .selectFrom(['before', 'moved'])
            .select([
              'moved.id',
              'moved.status_actor',
              'before.status as from_status',
              'moved.status as to_status',
              'moved.status_reason',
              sql<number>`greatest(0, extract(epoch from moved.status_since - before.status_since) * 1000)`.as('ms'),
            ]),
        ),
    )
    .selectFrom('moved')
    .selectAll()
    .executeTakeFirst()
  if (!row) return undefined
  await recordUsage(tx, move, row)
  if (isTerminal(to)) await deleteEnvs(tx, id)
  return row
}

/** Why it was asked for is also why it is so. */
const KEEPS_REASON: ReadonlySet<SandboxMove> = new Set(['pauseDone', 'destroyDone', 'discard'])

/**
 * Takes an operation from whoever works on it, or once did, without ending it: the fence rises, the status stays.
 * Gives undefined when the operation is no longer the one that was seen.
 */
export async function takeOver(db: Db | Tx, seen: SandboxRow, owner: string): Promise<SandboxRow | undefined> {
  return db
    .updateTable('sandboxes')
    .set({ owner, fence: sql<number>`fence + 1` })
    .where('id', '=', seen.id)
    .where('status', '=', seen.status)
    .where('fence', '=', seen.fence)
    .returningAll()
    .executeTakeFirst()
}

/** The times that the view shows follow from the move alone; the idle time of what begins to run begins with it. */
function stamps(to: SandboxStatus, move: SandboxMove) {
  const now = sql<Date>`now()`
  return {
    ...(move === 'createDone' || move === 'forkDone' ? { running_at: now } : {}),
    // A fork that was left paused runs for the first time now.
    ...(move === 'resumeDone' ? { last_resumed_at: now, running_at: sql<Date>`coalesce(running_at, now())` } : {}),
    ...(to === 'running' ? { last_active_at: now } : {}),
    ...(to === 'paused' ? { paused_at: now } : {}),
    ...(to === 'destroyed' ? { destroyed_at: now } : {}),
  }
}
