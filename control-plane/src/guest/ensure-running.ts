/**
 * Ensures that a sandbox is running before a request uses its guest. With `auto_resume`, a paused sandbox is resumed, and
 * the request waits while the sandbox is pausing, resuming or forking, at most WAIT_LIMIT_MS; then it fails with 503. Every
 * route that talks to a guest calls this once its input is validated:
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
 * How long a request waits, from its own beginning. It does not limit the resume, which continues and has a separate
 * limit (RESTORE_RETRY_LIMIT_S in sandboxes/restore-vm.ts).
 */
const WAIT_LIMIT_MS = 60_000
const POLL_MS = 20

const IN_TRANSITION: readonly SandboxStatus[] = ['pausing', 'resuming', 'forking']

export async function ensureRunning(
  deps: Deps,
  sandbox: SandboxRow,
  signal: AbortSignal,
  check: Check = checkRunning,
): Promise<SandboxRow> {
  if (sandbox.status === 'running') return sandbox
  if (!sandbox.auto_resume) check(sandbox)
  let row = sandbox
  for (
    const deadline = Date.now() + WAIT_LIMIT_MS;
    Date.now() < deadline;
    await delay(POLL_MS, undefined, { signal })
  ) {
    if (row.status === 'running') return row
    if (row.status === 'paused') await resume(deps, row)
    else if (!IN_TRANSITION.includes(row.status)) check(row)
    row = (await deps.loaders.sandbox(row.id)) ?? row
  }
  throw unavailable('the sandbox did not resume in time', { retryAfterSeconds: 2 })
}

/** Of several requests that find the sandbox paused, one resumes it. The others get `wrong_state` and wait. */
async function resume(deps: Deps, row: SandboxRow): Promise<void> {
  try {
    await resumeSandbox(deps, row, { reason: 'resumed by a request' })
  } catch (error) {
    if (!(error instanceof Failure) || error.code !== 'wrong_state') throw error
  }
}
