/**
 * Wrappers around every request to a guest. They check that the sandbox is running, record the use for auto-pause, and
 * turn an unexpected error into `guest unreachable`.
 */
import { Failure, Fault, failure, wrongState } from '@warren/kit/failure'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { CallerDisconnected } from '../http/caller-disconnected.ts'
import { postponeAutoPause } from './activity.ts'
import { guestUnreachable } from './failures.ts'

/**
 * For exec and files. Errors that the caller can fix pass through; any other error means that the guest is unreachable,
 * unless the sandbox has stopped running meanwhile: then that is reported. A caller that disconnects says nothing about
 * the guest.
 */
export const withGuest = <T>(
  deps: Deps,
  sandbox: SandboxRow,
  work: () => Promise<T>,
  caller?: AbortSignal,
): Promise<T> => useGuest(deps, sandbox, checkRunning, work, caller)

/** For processes, shells and tunnels, where a sandbox that is not running is a conflict (409). */
export const withProcessGuest = <T>(
  deps: Deps,
  sandbox: SandboxRow,
  work: () => Promise<T>,
  caller?: AbortSignal,
): Promise<T> => useGuest(deps, sandbox, checkRunningOrConflict, work, caller)

/** For requests that do not count as activity, or whose caller records it. */
export async function withGuestUnrecorded<T>(
  deps: Deps,
  sandbox: SandboxRow,
  work: () => Promise<T>,
  caller?: AbortSignal,
): Promise<T> {
  checkRunningOrConflict(sandbox)
  return explainError(deps, sandbox, checkRunningOrConflict, work, caller)
}

async function useGuest<T>(
  deps: Deps,
  sandbox: SandboxRow,
  check: Check,
  work: () => Promise<T>,
  caller: AbortSignal | undefined,
): Promise<T> {
  check(sandbox)
  using _ = deps.activity.beginUse(sandbox.id)
  // When the sandbox has been idle for almost too long, this postpones its auto-pause before the guest is used, or
  // fails because the pause has begun (activity.ts).
  if (!(await postponeAutoPause(deps, sandbox))) check(await reload(deps, sandbox))
  // Awaited here, so that the use lasts until the operation has ended and a long exec does not count as idle.
  return await explainError(deps, sandbox, check, work, caller)
}

async function explainError<T>(
  deps: Deps,
  sandbox: SandboxRow,
  check: Check,
  work: () => Promise<T>,
  caller: AbortSignal | undefined,
): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (error instanceof Failure || error instanceof Fault) throw error
    check(await reload(deps, sandbox))
    if (caller?.reason instanceof CallerDisconnected) deps.log.debug({ sandbox: sandbox.id }, caller.reason.message)
    else deps.log.warn({ err: error, sandbox: sandbox.id }, 'request to a guest failed')
    throw guestUnreachable(error)
  }
}

const reload = async (deps: Deps, sandbox: SandboxRow): Promise<SandboxRow> =>
  (await deps.loaders.sandbox(sandbox.id)) ?? sandbox

/** Throws the failure for a sandbox that is not running. */
export type Check = (sandbox: Pick<SandboxRow, 'status'>) => void

/** 404, for exec and files. Clients match the text. */
export function checkRunning(sandbox: Pick<SandboxRow, 'status'>): void {
  if (sandbox.status === 'running') return
  throw failure('sandbox_not_running', `sandbox is ${sandbox.status}, expected running`)
}

/** 409 with the same text, for processes, shells and tunnels. */
export function checkRunningOrConflict(sandbox: Pick<SandboxRow, 'status'>): void {
  if (sandbox.status !== 'running') throw wrongState(sandbox.status, 'running')
}
