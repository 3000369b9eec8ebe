/**
 * Ensures that a sandbox is running before a request uses its guest. A request to a sandbox that is being created, resumed
 * or forked waits until it runs: clients use a sandbox right after the 202 of its resume. With `auto_resume`, a paused
 * sandbox is resumed first, and a request during a pause waits for its end. Every route that talks to a guest calls this
 * once its input is validated:
 *
 *   const running = await ensureRunning(deps, sandbox, signal)
 *
 * If the resume is rejected (cap, credit, capacity), the request fails with that error.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { Failure, unavailable } from '@warren/kit/failure'
import type { SandboxStatus } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { resumeSandbox } from '../sandboxes/resume.ts'
import { type Check, checkRunning } from './with-guest.ts'

/**
 * How long a request waits, from its beginning. This does not limit the operation itself, which continues and has a
 * separate limit (RESTORE_RETRY_LIMIT_S in sandboxes/restore-vm.ts). Without `auto_resume` the request then fails because
 * of the sandbox's status, otherwise with 503.
 */
const WAIT_LIMITS_MS = { start: 30_000, autoResume: 60_000 }
const POLL_MS = 20

/** In these a sandbox becomes running without a further request. */
const STARTING: readonly SandboxStatus[] = ['creating', 'resuming', 'forking']

export async function ensureRunning(
  deps: Deps,
  sandbox: SandboxRow,
  signal: AbortSignal,
  check: Check = checkRunning,
  limitsMs = WAIT_LIMITS_MS,
): Promise<SandboxRow> {
  let row = sandbox
  const deadline = Date.now() + (sandbox.auto_resume ? limitsMs.autoResume : limitsMs.start)
  while (row.status !== 'running') {
    if (row.status === 'paused' && row.auto_resume) await resume(deps, row)
    else if (!isStarting(row)) check(row)
    if (Date.now() >= deadline) {
      if (row.auto_resume) throw unavailable('the sandbox did not resume in time', { retryAfterSeconds: 2 })
      check(row)
    }
    await delay(POLL_MS, undefined, { signal })
    row = (await deps.loaders.sandbox(row.id)) ?? row
  }
  return row
}

const isStarting = (row: SandboxRow): boolean =>
  STARTING.includes(row.status) || (row.auto_resume && row.status === 'pausing')

/** Of several requests that find the sandbox paused, one resumes it. The others get `wrong_state` and wait. */
async function resume(deps: Deps, row: SandboxRow): Promise<void> {
  try {
    await resumeSandbox(deps, row, { reason: 'resumed by a request' })
  } catch (error) {
    if (!(error instanceof Failure) || error.code !== 'wrong_state') throw error
  }
}
