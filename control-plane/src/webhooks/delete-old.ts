/** Removes records of deliveries: completed ones after half an hour, all others after three days. */
import { WEBHOOK_COMPLETED_RETENTION_MS, WEBHOOK_RETENTION_MS } from '@warren/protocol'
import { sql } from 'kysely'
import type { Sweep } from '../jobs/sweep.ts'

const DELETE_EVERY_MS = 60_000
/** Bounds the statement; a backlog takes several. */
const BATCH = 10_000

export const deleteOldDeliveries: Sweep = {
  name: 'delete-old-deliveries',
  everyMs: DELETE_EVERY_MS,
  async run(deps) {
    const now = deps.now().getTime()
    const completed = sql`completed_at < ${new Date(now - WEBHOOK_COMPLETED_RETENTION_MS)}`
    const old = sql`created_at < ${new Date(now - WEBHOOK_RETENTION_MS)}`
    for (const condition of [completed, old]) {
      for (let deleted = BATCH; deleted === BATCH; ) {
        const { numAffectedRows } = await sql`delete from webhook_deliveries
          where id in (select id from webhook_deliveries where ${condition} limit ${BATCH})`.execute(deps.db)
        deleted = Number(numAffectedRows ?? 0)
      }
    }
  },
}
