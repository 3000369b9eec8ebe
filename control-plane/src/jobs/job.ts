/**
 * A job is work that must happen: added in the transaction of its cause, run at least once, tried again on failure.
 * So its effects are fenced (sandboxes/move.ts) or harmless to repeat.
 */
import { sql } from 'kysely'
import type { Static, TSchema } from 'typebox'
import { Value } from 'typebox/value'
import type { Tx } from '../db/connect.ts'
import type { Deps } from '../deps.ts'

export type JobContext = { jobId: string; attempt: number; signal: AbortSignal }

export type Job<Payload extends TSchema = TSchema> = {
  name: string
  payload: Payload
  /** Attempts rise also for jobs that only sat in the queue of a process that died: leave room (platform 2.5). */
  maxAttempts: number
  run(deps: Deps, payload: Static<Payload>, context: JobContext): Promise<void>
}

export const defineJob = <Payload extends TSchema>(job: Job<Payload>): Job<Payload> => job

type Options = {
  /** A job with the same key that has not started is replaced by this one. */
  key?: string
  runAt?: Date
}

export async function addJob<Payload extends TSchema>(
  tx: Tx,
  job: Job<Payload>,
  payload: Static<Payload>,
  options: Options = {},
): Promise<void> {
  await sql`select graphile_worker.add_job(
    ${job.name}, ${JSON.stringify(payload)}::json, run_at => ${options.runAt ?? null},
    max_attempts => ${job.maxAttempts}, job_key => ${options.key ?? null})`.execute(tx)
}

export function parsePayload<Payload extends TSchema>(job: Job<Payload>, payload: unknown): Static<Payload> {
  if (!Value.Check(job.payload, payload)) throw new Error(`job ${job.name} has a payload that does not fit`)
  return payload as Static<Payload>
}
