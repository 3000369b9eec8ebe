/**
 * A job is background work that must happen. It is added in the transaction of its cause, runs at least once, and is
 * retried when it fails. Its effects are therefore fenced (sandboxes/move.ts) or harmless to repeat. It belongs to the trace
 * of the request that added it.
 */

import { matches } from '@warren/kit/matches'
import { continueTrace, traceHeader } from '@warren/kit/span'
import { sql } from 'kysely'
import type { Static, TSchema } from 'typebox'
import type { Tx } from '../db/connect.ts'
import type { Deps } from '../deps.ts'

export type JobContext = { jobId: string; attempt: number; signal: AbortSignal }

export type Job<Payload extends TSchema = TSchema> = {
  name: string
  payload: Payload
  /**
   * graphile-worker counts an attempt when it locks a job, so a job that was only queued in a process that died has
   * used one up. Choose a number well above the attempts that the work itself needs.
   */
  maxAttempts: number
  /** At most one job with a given key is queued: adding another replaces one that has not started. */
  key?(payload: Static<Payload>): string
  run(deps: Deps, payload: Static<Payload>, context: JobContext): Promise<void>
}

export const defineJob = <Payload extends TSchema>(job: Job<Payload>): Job<Payload> => job

export async function addJob<Payload extends TSchema>(
  tx: Tx,
  job: Job<Payload>,
  payload: Static<Payload>,
): Promise<void> {
  await sql`select graphile_worker.add_job(
    ${job.name}, ${JSON.stringify({ ...(payload as object), ...traceHeader() })}::json,
    max_attempts => ${job.maxAttempts}, job_key => ${job.key?.(payload) ?? null})`.execute(tx)
}

export function runJob(deps: Deps, job: Job, payload: unknown, context: JobContext): Promise<void> {
  const { traceparent } = payload as { traceparent?: unknown }
  const from = typeof traceparent === 'string' ? traceparent : undefined
  return continueTrace(from, { name: job.name }, async () => job.run(deps, parsePayload(job, payload), context))
}

function parsePayload<Payload extends TSchema>(job: Job<Payload>, payload: unknown): Static<Payload> {
  if (!matches(job.payload, payload)) throw new Error(`payload of job ${job.name} does not match its schema`)
  return payload as Static<Payload>
}
