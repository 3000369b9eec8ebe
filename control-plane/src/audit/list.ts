import type { AuditEntry, AuditQuery } from '@warren/protocol'
import type { Selectable } from 'kysely'
import type { Tables } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { clampPage } from '../http/pagination.ts'
import { renderTime } from '../sandboxes/view.ts'

/** Entries about the user's own resources, newest first. */
export async function listAuditEntries(deps: Deps, userId: string, query: AuditQuery) {
  const { limit, offset } = clampPage(query)
  // A caller finds the calls that this process has answered, though their entries may still be on the way.
  await deps.audit.written()
  const own = deps.db
    .selectFrom('audit_log')
    .where('user_id', '=', userId)
    .$if(query.action !== undefined, (entries) => entries.where('action', '=', query.action!))
    .$if(query.target !== undefined, (entries) => entries.where('target', '=', query.target!))
  const [rows, { total }] = await Promise.all([
    own.selectAll().orderBy('id', 'desc').limit(limit).offset(offset).execute(),
    own.select((eb) => eb.fn.countAll<number>().as('total')).executeTakeFirstOrThrow(),
  ])
  return { entries: rows.map(viewEntry), total, limit, offset }
}

const viewEntry = (row: Selectable<Tables['audit_log']>): AuditEntry => ({
  id: row.id,
  at: renderTime(row.at),
  actor_kind: row.actor_kind,
  // The login of an operator is for other operators (warren admin audit).
  actor: row.actor_kind === 'operator' ? 'operator' : row.actor,
  ...(row.credential === null ? {} : { credential: row.credential }),
  action: row.action,
  ...(row.target === null ? {} : { target: row.target }),
  outcome: row.outcome,
  ...(row.status === null ? {} : { status: row.status }),
  ...(row.code === null ? {} : { code: row.code }),
  ...(row.request_id === null ? {} : { request_id: row.request_id }),
})
