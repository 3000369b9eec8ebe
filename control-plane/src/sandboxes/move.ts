/**
 * The only code that writes a sandbox's status.
 *
 * A move is one guarded UPDATE: of two racing callers one changes the row, the other finds it changed and gets 409.
 * A move that begins an operation raises the fence and hands the new number to whoever does the work. A move that
 * ends it commits only with that number: a worker that was thought dead and wakes up later is refused.
 * What is paid for follows from the move (usage.ts), in the same transaction.
 */
import { wrongState } from '@warren/kit/failure'
import { expectedStatus, SANDBOX_MOVES, type SandboxMove, type SandboxStatus } from '@warren/protocol'
import { sql } from 'kysely'
import type { Db, Tx } from '../db/connect.ts'
import type { SandboxRow } from '../db/schema.ts'
import { recordUsage } from './usage.ts'

type Begins = { [M in SandboxMove]: (typeof SANDBOX_MOVES)[M]['fence'] extends 'begins' ? M : never }[SandboxMove]
type Ends = Exclude<SandboxMove, Begins>
export type Change = { reason?: string; set?: Partial<Pick<SandboxRow, 'ip' | 'host_id' | 'spawn_ms'>> }

/** Thrown, never returned: a job that ends normally would delete the row another process works on (platform 2.5). */
export class FenceLost extends Error {
  override name = 'FenceLost'
  constructor(id: string, move: SandboxMove, fence: number) {
    super(`${move} of ${id} is refused: operation ${fence} is no longer the one under way`)
  }
}

/** Begins an operation. Gives the row with its new fence, or throws 409 with the status it met. */
export async function beginMove(tx: Tx, id: string, move: Begins, change: Change = {}): Promise<SandboxRow> {
  const row = await update(tx, id, move, change, undefined)
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

async function update(tx: Tx, id: string, move: SandboxMove, change: Change, fence: number | undefined) {
  const { from, to, fence: role } = SANDBOX_MOVES[move]
  const row = await tx
    .updateTable('sandboxes')
    .set({
      ...change.set,
      ...stamps(to, move),
      status: to,
      status_reason: change.reason ?? null,
      ...(role === 'begins' ? { fence: sql<number>`fence + 1` } : {}),
    })
    .where('id', '=', id)
    .where('status', 'in', [...from])
    .$if(fence !== undefined, (query) => query.where('fence', '=', fence!))
    .returningAll()
    .executeTakeFirst()
  if (row) await recordUsage(tx, move, row)
  return row
}

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

/** The times that the view shows follow from the move alone. */
function stamps(to: SandboxStatus, move: SandboxMove) {
  const now = sql<Date>`now()`
  return {
    ...(move === 'createDone' || move === 'forkDone' ? { running_at: now } : {}),
    ...(move === 'resumeDone' ? { last_resumed_at: now } : {}),
    ...(to === 'paused' ? { paused_at: now } : {}),
    ...(to === 'destroyed' ? { destroyed_at: now } : {}),
  }
}
