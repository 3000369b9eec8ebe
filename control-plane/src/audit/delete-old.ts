/** Deletes entries of the audit log after WARREN_AUDIT_RETENTION_DAYS. Only this code may delete any (migration 0007). */
import { sql } from 'kysely'
import type { Sweep } from '../jobs/sweep.ts'

const DELETE_EVERY_MS = 600_000
/** Bounds the statement; a backlog takes several. */
const BATCH = 10_000
const DAY_MS = 86_400_000

export const deleteOldAuditEntries: Sweep = {
  name: 'delete-old-audit-entries',
  everyMs: DELETE_EVERY_MS,
  async run(deps) {
    const before = new Date(deps.now().getTime() - deps.config.auditRetentionDays * DAY_MS)
    for (let deleted = BATCH; deleted === BATCH; ) {
      deleted = await deps.db.transaction().execute(async (tx) => {
        await sql`set local warren.audit_retention = 'on'`.execute(tx)
        const { numAffectedRows } = await sql`delete from audit_log where id in (
          select id from audit_log where at < ${before} limit ${BATCH})`.execute(tx)
        return Number(numAffectedRows ?? 0)
      })
    }
  },
}
