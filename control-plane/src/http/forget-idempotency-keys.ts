import { sql } from 'kysely'
import type { Sweep } from '../jobs/sweep.ts'
import { KEEP_HOURS } from './idempotency.ts'

export const forgetIdempotencyKeys: Sweep = {
  name: 'forget-idempotency-keys',
  everyMs: 10 * 60_000,
  async run(deps) {
    await sql`delete from idempotency_keys where created_at < now() - make_interval(hours => ${KEEP_HOURS})`.execute(
      deps.db,
    )
  },
}
