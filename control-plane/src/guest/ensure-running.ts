/**
 * The sandbox that a request to its guest needs: running. With `auto_resume` a paused one is resumed and waited for;
 * one that is on its way is waited for. Every route that talks to a guest begins with it, after its 400s:
 *
 *   const running = await ensureRunning(deps, sandbox, signal)
 *
 * Whatever a resume is refused for (cap, credit, capacity) is the answer of the request.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { Failure, unavailable } from '@warren/kit/failure'
import type { SandboxStatus } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { resumeSandbox } from '../sandboxes/resume.ts'
import { type Check, checkRunning } from './with-guest.ts'

const WAKE_LIMIT_MS = 60_000
const LOOK_MS = 20

const ON_ITS_WAY: readonly SandboxStatus[] = ['pausing', 'resuming', 'forking']

export async function ensureRunning(
  deps: Deps,
  sandbox: SandboxRow,
  signal: AbortSignal,
  check: Check = checkRunning,
): Promise<SandboxRow> {
  if (sandbox.status === 'running') return sandbox
  if (!sandbox.auto_resume) check(sandbox)
  let row = sandbox
  for (const deadline = Date.now() + WAKE_LIMIT_MS; Date.now() < deadline; await pause(signal)) {
    if (row.status === 'running') return row
    if (row.status === 'paused') await resume(deps, row)
    else if (!ON_ITS_WAY.includes(row.status)) check(row)
    row = (await deps.loaders.sandbox(row.id)) ?? row
  }
  throw unavailable('the sandbox did not wake in time', { retryAfterSeconds: 2 })
}

/** Of several requests that find it paused one resumes it; to the others it is on its way. */
async function resume(deps: Deps, row: SandboxRow): Promise<void> {
  try {
    await resumeSandbox(deps, row, { reason: 'woken by a request' })
  } catch (error) {
    if (!(error instanceof Failure) || error.code !== 'wrong_state') throw error
  }
}

async function pause(signal: AbortSignal): Promise<void> {
  await delay(LOOK_MS, undefined, { signal })
}
