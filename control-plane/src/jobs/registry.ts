/** All that runs by itself. Slow work is a job, named in its verb's file; repeated work is a sweep. */
import { forgetIdempotencyKeys } from '../http/forget-idempotency-keys.ts'
import type { Job } from './job.ts'
import { freeDeadProcesses } from './processes.ts'
import type { Sweep } from './sweep.ts'

export const JOBS: readonly Job[] = []

export const SWEEPS: readonly Sweep[] = [freeDeadProcesses, forgetIdempotencyKeys]
