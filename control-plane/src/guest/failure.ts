/**
 * What passes through to a guest, and what comes of it when it does not work. The guest is not trusted: of what it
 * says only codes we know decide anything, and its text is cut before it is shown to its owner.
 */
import type { ClientHttp2Stream } from 'node:http2'
import { badField, Failure, failure, upstreamUnavailable } from '@warren/kit/failure'
import { GuestFailure, truncateUtf8 } from '@warren/protocol'
import { Value } from 'typebox/value'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { parseJson, type ResponseHeaders, readAll } from '../hosts/client.ts'
import { CallerGone } from '../http/caller-gone.ts'
import { hold } from './activity.ts'

const FAILURE_MAX_BYTES = 64 * 1024
export const GUEST_TEXT_MAX_BYTES = 1024

/** 404, as the spec has it; clients match the text (wire 4). */
export function checkRunning(sandbox: Pick<SandboxRow, 'status'>): void {
  if (sandbox.status === 'running') return
  throw failure('sandbox_not_running', `sandbox is ${sandbox.status}, expected running`)
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
  const text = truncateUtf8(value.message, GUEST_TEXT_MAX_BYTES)
  if (value.code === 'file_not_found') throw failure('file_not_found', 'file not found')
  if (value.code === 'invalid_path' || value.code === 'not_writable') throw badField({ path: text })
  if (value.code === 'no_space') throw badField({ body: 'does not fit: no space left on the disk of the sandbox' })
  if (value.code === 'too_large') throw badField({ body: text })
  throw new Error(`the guest or its host refused: ${value.code} ${text}`)
}

/**
 * Runs what talks to a guest. What the caller can mend passes; all else is an unreachable guest, unless the sandbox
 * has stopped running meanwhile: then that is the reason. A caller that hangs up is no news of the guest.
 */
export async function withGuest<T>(deps: Deps, sandbox: SandboxRow, talk: () => Promise<T>): Promise<T> {
  checkRunning(sandbox)
  using _ = deps.activity.during(sandbox.id)
  // Idle for nearly too long: held before anything is asked of the guest, or refused (activity.ts).
  if (!(await hold(deps, sandbox))) checkRunning(await reload(deps, sandbox))
  try {
    return await talk()
  } catch (error) {
    if (error instanceof Failure) throw error
    checkRunning(await reload(deps, sandbox))
    if (error instanceof CallerGone) deps.log.debug({ sandbox: sandbox.id }, error.message)
    else deps.log.warn({ err: error, sandbox: sandbox.id }, 'a guest does not answer')
    throw guestUnreachable(error)
  }
}

const reload = async (deps: Deps, sandbox: SandboxRow): Promise<SandboxRow> =>
  (await deps.loaders.sandbox(sandbox.id)) ?? sandbox
