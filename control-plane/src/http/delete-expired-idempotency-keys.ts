/** Deletes idempotency keys that are older than their retention. */
import { sql } from 'kysely'
import type { Sweep } from '../jobs/sweep.ts'
import { RETENTION_HOURS } from './idempotency.ts'

export const deleteExpiredIdempotencyKeys: Sweep = {
  name: 'delete-expired-idempotency-keys',
  everyMs: 10 * 60_000,
  async run(deps) {
    await sql`delete from idempotency_keys
      where created_at < now() - make_interval(hours => ${RETENTION_HOURS})`.execute(deps.db)
  },
}
