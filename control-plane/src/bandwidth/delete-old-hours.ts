/** Deletes the bytes per hour (migration 0011) after some time. The totals of a sandbox stay. */
import { BANDWIDTH_HOURS_RETENTION_DAYS } from '@warren/protocol'
import { sql } from 'kysely'
import type { Sweep } from '../jobs/sweep.ts'

const DELETE_EVERY_MS = 600_000
/** Bounds the statement; a backlog takes several. */
const BATCH = 10_000

export const deleteOldBandwidthHours: Sweep = {
  name: 'delete-old-bandwidth-hours',
  everyMs: DELETE_EVERY_MS,
  async run(deps) {
    for (let deleted = BATCH; deleted === BATCH; ) {
      const { numAffectedRows } = await sql`delete from bandwidth_hours where (user_id, hour, sandbox_id) in (
        select user_id, hour, sandbox_id from bandwidth_hours
        where hour < now() - make_interval(days => ${BANDWIDTH_HOURS_RETENTION_DAYS}) limit ${BATCH})`.execute(deps.db)
      deleted = Number(numAffectedRows ?? 0)
    }
  },
}
