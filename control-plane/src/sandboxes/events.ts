/** The history of a sandbox (protocol/src/sandbox-event.ts). Every move writes an event (move.ts). */
import { EVENTS_RETENTION_DAYS, type PageQuery, type SandboxEvent } from '@warren/protocol'
import { sql } from 'kysely'
import type { Deps } from '../deps.ts'
import { clampPage } from '../http/pagination.ts'
import type { Sweep } from '../jobs/sweep.ts'
import { renderTime } from './view.ts'

export async function listEvents(deps: Deps, sandboxId: string, query: PageQuery) {
  const { limit, offset } = clampPage(query)
  const [rows, { total }] = await Promise.all([
    deps.db
      .selectFrom('sandbox_events')
      .selectAll()
      .where('sandbox_id', '=', sandboxId)
      .orderBy('id', 'desc')
      .limit(limit)
      .offset(offset)
      .execute(),
    deps.db
      .selectFrom('sandbox_events')
      .select((eb) => eb.fn.countAll<number>().as('total'))
      .where('sandbox_id', '=', sandboxId)
      .executeTakeFirstOrThrow(),
  ])
  const events = rows.map(
    (row): SandboxEvent => ({
      at: renderTime(row.at),
      actor: row.actor,
      from: row.from_status,
      to: row.to_status,
      ...(row.reason === null ? {} : { reason: row.reason }),
      duration_ms: Math.round(row.duration_ms * 1000) / 1000,
    }),
  )
  return { events, total, limit, offset }
}

const DELETE_EVERY_MS = 600_000
/** Bounds the statement; a backlog takes several sweeps. */
const BATCH = 10_000

export const deleteOldEvents: Sweep = {
  name: 'delete-old-events',
  everyMs: DELETE_EVERY_MS,
  async run(deps) {
    await sql`delete from sandbox_events where id in (
      select e.id from sandbox_events e join sandboxes s on s.id = e.sandbox_id
      where e.at < now() - make_interval(days => ${EVENTS_RETENTION_DAYS})
        and s.status in ('destroyed', 'failed')
        and s.status_since < now() - make_interval(days => ${EVENTS_RETENTION_DAYS})
      limit ${BATCH})`.execute(deps.db)
  },
}
