/**
 * What passes through to a guest, and what comes of it when it does not work. The guest is not trusted: of what it
 * says only codes we know decide anything, and its text is cut before it is shown to its owner.
 */
import type { ClientHttp2Stream } from 'node:http2'
import { badField, Failure, Fault, failure, upstreamUnavailable, wrongState } from '@warren/kit/failure'
import {
  GUEST_STREAM_FAILURES,
  GuestFailure,
  type GuestStreamFailure,
  offsetExpiredFail,
  truncateUtf8,
} from '@warren/protocol'
import { Value } from 'typebox/value'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { parseJson, type ResponseHeaders, readAll } from '../hosts/client.ts'
import { CallerDisconnected } from '../http/caller-disconnected.ts'
import { postponeAutoPause } from './activity.ts'

/** For a sandbox that is full of open connections: somebody has to close one. */
const TOO_MANY_RETRY_S = 1
const FAILURE_MAX_BYTES = 64 * 1024
export const GUEST_TEXT_MAX_BYTES = 1024

/** Throws what it means that a sandbox is not running. */
export type Check = (sandbox: Pick<SandboxRow, 'status'>) => void

/** 404 for exec and files, as the spec has it; clients match the text (wire 4). */
export function checkRunning(sandbox: Pick<SandboxRow, 'status'>): void {
  if (sandbox.status === 'running') return
  throw failure('sandbox_not_running', `sandbox is ${sandbox.status}, expected running`)
}

/** 409 for processes, shells and tunnels (spec 4.4, 4.11), with the same text. */
export function checkRunningState(sandbox: Pick<SandboxRow, 'status'>): void {
  if (sandbox.status !== 'running') throw wrongState(sandbox.status, 'running')
}

export const guestUnreachable = (cause: unknown) => upstreamUnavailable('guest unreachable', { cause })

/** The guest said 200, or this throws what it means that it did not. */
export async function checkGuestAnswer(
  stream: ClientHttp2Stream,
  headers: ResponseHeaders,
  signal: AbortSignal,
): Promise<void> {
  if (headers[':status'] === 200) return
  const value = parseJson(await readAll(stream, FAILURE_MAX_BYTES, signal))
  if (!Value.Check(GuestFailure, value)) throw new Error(`the guest answered ${headers[':status']} without a reason`)
  throw toFailure(value)
}

/** Of process codes the guest's text goes to the owner, cut; the code decides the status (spec 7). */
const PROCESS_CODES = [
  'wrong_process_kind',
  'process_exited',
  'stdin_closed',
  'process_limit_reached',
  'wait_timeout',
] as const
/** Where a fault lies in what the caller sent, by the guest's code for it. */
const FIELDS: Record<string, string> = {
  invalid_path: 'path',
  not_writable: 'path',
  too_large: 'body',
  invalid: 'body',
  invalid_cmd: 'cmd',
  invalid_cwd: 'cwd',
  invalid_signal: 'signal',
}
/** What the guest could not do, in words of ours. */
const REFUSALS: Record<GuestStreamFailure, string> = {
  shell_failed: 'no shell could be started',
  connect_refused: 'connection refused in the sandbox',
  connect_timeout: 'the port in the sandbox did not answer in time',
  no_ssh_server: 'nothing listens on port 22 of the sandbox, and its image has no sshd: install openssh-server',
}

function toFailure({ code, message, oldest_available_seq: oldest }: GuestFailure): Error {
  const text = truncateUtf8(message, GUEST_TEXT_MAX_BYTES)
  if (code === 'file_not_found') return failure('file_not_found', 'file not found')
  if (code === 'no_space') return badField({ body: 'does not fit: no space left on the disk of the sandbox' })
  if (Object.hasOwn(FIELDS, code)) return badField({ [FIELDS[code]!]: text })
  if (code === 'process_not_found') return failure('process_not_found', 'process not found')
  const processCode = PROCESS_CODES.find((known) => known === code)
  if (processCode) return failure(processCode, text)
  if (code === 'output_offset_expired' && oldest !== undefined && Number.isSafeInteger(oldest)) {
    return new Failure('output_offset_expired', offsetExpiredFail(oldest))
  }
  if (code === 'too_many_streams') {
    const text = 'too many connections to this sandbox are open at once'
    return failure('rate_limited', text, { retryAfterSeconds: TOO_MANY_RETRY_S })
  }
  const refusal = GUEST_STREAM_FAILURES.find((known) => known === code)
  if (refusal) return upstreamUnavailable(REFUSALS[refusal])
  return new Error(`the guest or its host refused: ${code} ${text}`)
}

/**
 * Runs what talks to a guest. What the caller can mend passes; all else is an unreachable guest, unless the sandbox
 * has stopped running meanwhile: then that is the reason. A caller that hangs up is no news of the guest.
 */
export const withGuest = <T>(
  deps: Deps,
  sandbox: SandboxRow,
  talk: () => Promise<T>,
  caller?: AbortSignal,
): Promise<T> => use(deps, sandbox, checkRunning, talk, caller)

/** The same for processes, shells and tunnels, where not running is 409. */
export const withUsedGuest = <T>(
  deps: Deps,
  sandbox: SandboxRow,
  talk: () => Promise<T>,
  caller?: AbortSignal,
): Promise<T> => use(deps, sandbox, checkRunningState, talk, caller)

/** For what is no activity, or only at times: whoever calls notes it. */
export async function withIdleGuest<T>(
  deps: Deps,
  sandbox: SandboxRow,
  talk: () => Promise<T>,
  caller?: AbortSignal,
): Promise<T> {
  checkRunningState(sandbox)
  return explainTrouble(deps, sandbox, checkRunningState, talk, caller)
}

async function use<T>(
  deps: Deps,
  sandbox: SandboxRow,
  check: Check,
  talk: () => Promise<T>,
  caller: AbortSignal | undefined,
): Promise<T> {
  check(sandbox)
  using _ = deps.activity.beginUse(sandbox.id)
  // Idle for nearly too long: held before anything is asked of the guest, or refused (activity.ts).
  if (!(await postponeAutoPause(deps, sandbox))) check(await reload(deps, sandbox))
  return explainTrouble(deps, sandbox, check, talk, caller)
}

async function explainTrouble<T>(
  deps: Deps,
  sandbox: SandboxRow,
  check: Check,
  talk: () => Promise<T>,
  caller: AbortSignal | undefined,
): Promise<T> {
  try {
    return await talk()
  } catch (error) {
    if (error instanceof Failure || error instanceof Fault) throw error
    check(await reload(deps, sandbox))
    if (caller?.reason instanceof CallerDisconnected) deps.log.debug({ sandbox: sandbox.id }, caller.reason.message)
    else deps.log.warn({ err: error, sandbox: sandbox.id }, 'a guest does not answer')
    throw guestUnreachable(error)
  }
}

const reload = async (deps: Deps, sandbox: SandboxRow): Promise<SandboxRow> =>
  (await deps.loaders.sandbox(sandbox.id)) ?? sandbox
