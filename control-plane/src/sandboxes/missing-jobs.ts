/**
 * Adds a job to every operation that lacks one: its job was lost, has used up its attempts, or waits for a late retry
 * although its host is back.
 *
 * An operation on a dead host cannot make progress, so it gets no job until it is due to end without the host: a
 * destroy when the host counts as lost, a resume or fork when its time is up. A pause keeps waiting, because only the
 * host knows whether it took place.
 *
 * Operations are read before jobs. An operation that ends in between looks as if it had no job and gets one, which
 * finds the operation over and does nothing.
 */
import { sql } from 'kysely'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { addJob, type Job } from '../jobs/job.ts'
import { destroyJob, LOST_AFTER_S } from './destroy.ts'
import { startForkJob } from './fork.ts'
import type { Operation } from './operation.ts'
import { pauseJob } from './pause.ts'
import { RESTORE_RETRY_LIMIT_S } from './restore-vm.ts'
import { resumeJob } from './resume.ts'

type OperationStatus = Extract<SandboxRow['status'], 'destroying' | 'pausing' | 'resuming' | 'forking'>

/** Each of these jobs accepts an `Operation` as its payload and derives its key from it. */
const JOB_BY_STATUS: Readonly<Record<OperationStatus, Job>> = {
  destroying: destroyJob,
  pausing: pauseJob,
  resuming: resumeJob,
  forking: startForkJob,
}

/** Bounds the transaction; the next sweep continues. */
const BATCH = 100

export async function addMissingJobs(deps: Deps): Promise<void> {
  const operations = await listOperations(deps)
  if (operations.length === 0) return
  const queued = await findQueuedKeys(
    deps,
    operations.map(({ key }) => key),
  )
  const missing = operations.filter(({ key }) => !queued.has(key)).slice(0, BATCH)
  if (missing.length === 0) return
  await deps.db.transaction().execute(async (tx) => {
    for (const { job, operation } of missing) await addJob(tx, job, operation)
  })
}

type OperationWithJob = { operation: Operation; job: Job; key: string }

async function listOperations(deps: Deps): Promise<OperationWithJob[]> {
  const { rows } = await sql<Operation & { status: OperationStatus }>`select s.id, s.fence, s.status
    from sandboxes s left join hosts h on h.id = s.host_id
    where (s.status in ('destroying', 'pausing', 'resuming') or (s.status = 'forking' and s.owner is null))
      and (h.id is null or h.status <> 'dead'
        or (s.status = 'destroying' and h.seen_at < now() - make_interval(secs => ${LOST_AFTER_S}))
        or (s.status in ('resuming', 'forking')
          and s.status_since < now() - make_interval(secs => ${RESTORE_RETRY_LIMIT_S})))
    order by s.id`.execute(deps.db)
  return rows.map(({ status, ...operation }) => {
    const job = JOB_BY_STATUS[status]
    return { operation, job, key: job.key!(operation) } // All four define a key.
  })
}

/** The keys that have a job which runs now or is about to. */
async function findQueuedKeys(deps: Deps, keys: string[]): Promise<Set<string>> {
  const { rows } = await sql<{ key: string }>`select key from graphile_worker.jobs
    where key = any(${keys}::text[]) and attempts < max_attempts
      and (locked_at is not null or run_at < now() + interval '2 seconds')`.execute(deps.db)
  return new Set(rows.map(({ key }) => key))
}
