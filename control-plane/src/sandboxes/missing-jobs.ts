/**
 * For rows that no job works on or soon will: its job was lost, or waits long after failures while its host is back.
 * A host that is dead has nothing to say, so nothing is added for its rows until the operation is due to end without
 * it: a destroy when the host counts as lost, a resume when its time is up. A pause waits: only the host knows.
 */
import type { SandboxStatus } from '@warren/protocol'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { addDestroyJob, LOST_AFTER_S } from './destroy.ts'
import { addStartForkJob } from './fork.ts'
import { addPauseJob } from './pause.ts'
import { SILENCE_LIMIT_S } from './restore-vm.ts'
import { addResumeJob } from './resume.ts'

type Row = Pick<SandboxRow, 'id' | 'fence'> & { status: keyof typeof ADD }

const ADD = {
  destroying: (tx: Tx, { id }: Row) => addDestroyJob(tx, id),
  pausing: addPauseJob,
  resuming: addResumeJob,
  forking: addStartForkJob,
} as const satisfies Partial<Record<SandboxStatus, (tx: Tx, row: Row) => Promise<void>>>

export async function addMissingJobs(deps: Deps): Promise<void> {
  await deps.db.transaction().execute(async (tx) => {
    const { rows } = await sql<Row>`select s.id, s.fence, s.status
      from sandboxes s left join hosts h on h.id = s.host_id
      where (s.status in ('destroying', 'pausing', 'resuming') or (s.status = 'forking' and s.owner is null))
        and (h.id is null or h.status <> 'dead'
          or (s.status = 'destroying' and h.seen_at < now() - make_interval(secs => ${LOST_AFTER_S}))
          or (s.status in ('resuming', 'forking')
            and s.status_since < now() - make_interval(secs => ${SILENCE_LIMIT_S})))
        and not exists (select from graphile_worker.jobs j
          where j.key = case s.status when 'destroying' then 'destroy ' || s.id
              else s.status || ' ' || s.id || ' ' || s.fence end
            and j.attempts < j.max_attempts
            and (j.locked_at is not null or j.run_at < now() + interval '2 seconds'))
      order by s.id limit 100`.execute(tx)
    for (const row of rows) await ADD[row.status](tx, row)
  })
}
