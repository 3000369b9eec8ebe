/**
 * The only code that writes a sandbox's status.
 *
 * A move is one guarded statement. Of two racing callers, one changes the row; the other finds it changed and gets 409.
 * A move that begins an operation raises the fence and returns the new number to the caller that does the work. The
 * move that ends the operation commits only with that number, so a worker that was presumed dead and runs again cannot
 * commit.
 *
 * The same statement writes the sandbox's event and emits its webhook event (webhooks/move-events.ts). Its usage intervals change in the same transaction (usage.ts).
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
import { currentAuditId } from '../audit/context.ts'
import type { Db, Tx } from '../db/connect.ts'
import type { SandboxRow } from '../db/schema.ts'
import { moveEvent } from '../webhooks/move-events.ts'
import { deleteEnvs } from './envs.ts'
import { releaseOnHost } from './reservations.ts'
import { recordUsage } from './usage.ts'

type BeginningMove = {
  [M in SandboxMove]: (typeof SANDBOX_MOVES)[M]['fence'] extends 'begins' ? M : never
}[SandboxMove]
type EndingMove = Exclude<SandboxMove, BeginningMove>
export type MoveOptions = {
  reason?: string | undefined
  set?: Partial<Pick<SandboxRow, 'ip' | 'host_id' | 'spawn_ms' | 'generation'>>
  /** For a VM that uses no memory any more: what it reserved is released (reservations.ts), without another update of the row. */
  releasesMemory?: boolean
}
/** The actor of the beginning is recorded as the actor of the end as well. */
export type BeginOptions = MoveOptions & { actor?: EventActor }

/**
 * Thrown, never returned: a job must not end normally when another process works on the operation, because
 * graphile-worker would then delete the job that this other process is running.
 */
export class FenceLost extends Error {
  override name = 'FenceLost'
  constructor(id: string, move: SandboxMove, fence: number) {
    super(`failed to commit ${move} of ${id}: operation ${fence} is no longer the current one`)
  }
}

/** Begins an operation. Returns the row with its new fence, or throws 409 with the status that it found. */
export async function beginMove(
  tx: Tx,
  id: string,
  move: BeginningMove,
  options: BeginOptions = {},
): Promise<SandboxRow> {
  const row = await update(tx, id, move, { actor: 'user', ...options }, undefined)
  if (row) return row
  const found = await tx.selectFrom('sandboxes').select('status').where('id', '=', id).executeTakeFirst()
  throw wrongState(found?.status ?? 'destroyed', expectedStatus(move))
}

/** Ends the operation that holds `fence`, or throws FenceLost. */
export async function endMove(
  tx: Tx,
  id: string,
  move: EndingMove,
  fence: number,
  options: MoveOptions = {},
): Promise<SandboxRow> {
  const row = await update(tx, id, move, options, fence)
  if (!row) throw new FenceLost(id, move, fence)
  return row
}

async function update(tx: Tx, id: string, move: SandboxMove, options: BeginOptions, fence: number | undefined) {
  const { from, to, fence: role } = SANDBOX_MOVES[move]
  const event = moveEvent(move)
  const found = await tx
    .with('before', (db) =>
      db
        .selectFrom('sandboxes')
        .select(['id', 'status', 'status_since', 'reserved_mib'])
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
          ...options.set,
          ...(options.releasesMemory ? { reserved_mib: 0 } : {}),
          ...timestamps(to, move),
          status: to,
          status_since: sql<Date>`now()`,
          status_reason: options.reason ?? (INHERITS_REASON.has(move) ? sql<string | null>`status_reason` : null),
          ...(options.actor ? { status_actor: options.actor } : {}),
          ...(role === 'begins' ? { fence: sql<number>`fence + 1`, status_audit_id: currentAuditId() ?? null } : {}),
        })
        .whereRef('sandboxes.id', '=', 'before.id')
        .returningAll('sandboxes')
        .returning('before.reserved_mib as held_mib'),
    )
    .with('event', (db) =>
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
    .$if(event !== undefined, (query) => query.select(event!.as('emitted')))
    .executeTakeFirst()
  if (!found) return undefined
  const { held_mib, ...row } = found
  await recordUsage(tx, move, row)
  if (isTerminal(to)) await deleteEnvs(tx, id)
  // Last: the host comes after all other rows in the order of locks.
  if (options.releasesMemory && held_mib > 0) await releaseOnHost(tx, row.host_id, held_mib)
  return row
}

/** Moves that end with the reason that their beginning gave. */
const INHERITS_REASON: ReadonlySet<SandboxMove> = new Set(['pauseDone', 'destroyDone', 'destroyWithoutVm'])

/**
 * Takes an operation away from the process that works on it, without ending it: the fence rises, the status stays.
 * Returns undefined when the operation is no longer the one in `seen`.
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

/** The timestamps that a move sets. A sandbox that starts running also starts its idle time (auto-pause.ts). */
function timestamps(to: SandboxStatus, move: SandboxMove) {
  const now = sql<Date>`now()`
  return {
    ...(move === 'createDone' || move === 'forkDone' ? { running_at: now } : {}),
    // A fork that was created paused runs for the first time now.
    ...(move === 'resumeDone' ? { last_resumed_at: now, running_at: sql<Date>`coalesce(running_at, now())` } : {}),
    ...(to === 'running' ? { last_active_at: now } : {}),
    ...(to === 'paused' ? { paused_at: now } : {}),
    ...(to === 'destroyed' ? { destroyed_at: now } : {}),
  }
}
