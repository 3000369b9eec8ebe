/**
 * Operations on existing processes. Records and journals are held by the guest only, so they survive a restart of the
 * control plane. Only input counts as activity.
 */
import { badField, failure } from '@warren/kit/failure'
import {
  checkProcessInput,
  decodeBase64,
  Empty,
  PROCESS_GRACE_DEFAULT_MS,
  type ProcessDeleteQuery,
  ProcessInputView,
  ProcessListView,
  type ProcessResizeBody,
  type ProcessSignalBody,
  ProcessView,
  type ProcessWaitQuery,
  processWaitMs,
} from '@warren/protocol'
import type { Static, TSchema } from 'typebox'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import type { GuestRequest } from '../hosts/client.ts'
import { ensureRunning } from './ensure-running.ts'
import { requestGuest } from './request-guest.ts'
import { checkRunningOrConflict, withGuestUnrecorded, withProcessGuest } from './with-guest.ts'

const RESPONSE_TIMEOUT_MS = 15_000
/** Extra time for the response of a guest whose own timeout has passed. */
const GRACE_MS = 10_000
/** Clients give up after 60 s; before that they receive the error that the program does not read its input. */
const INPUT_TIMEOUT_MS = 50_000
const NEVER = new AbortController().signal

export const listProcesses = (deps: Deps, sandbox: SandboxRow): Promise<ProcessListView> =>
  requestProcess(deps, sandbox, { method: 'GET', route: 'processes' }, ProcessListView)

export const getProcess = (deps: Deps, sandbox: SandboxRow, id: string): Promise<ProcessView> =>
  requestProcess(deps, sandbox, { method: 'GET', route: 'processes', subpath: processPath(id) }, ProcessView)

export function waitProcess(
  deps: Deps,
  sandbox: SandboxRow,
  id: string,
  query: ProcessWaitQuery,
  signal: AbortSignal,
): Promise<ProcessView> {
  const timeoutMs = processWaitMs(query)
  const request: GuestRequest = {
    method: 'GET',
    route: 'processes',
    subpath: `${processPath(id)}/wait`,
    query: { scope: query.scope ?? 'leader', timeout_ms: String(timeoutMs) },
  }
  return requestProcess(deps, sandbox, request, ProcessView, { ms: timeoutMs + GRACE_MS, signal })
}

/** Continues when the caller disconnects. */
export function deleteProcess(
  deps: Deps,
  sandbox: SandboxRow,
  id: string,
  { grace_ms = PROCESS_GRACE_DEFAULT_MS }: ProcessDeleteQuery,
): Promise<ProcessView> {
  const query = { grace_ms: String(grace_ms) }
  const request: GuestRequest = { method: 'DELETE', route: 'processes', subpath: processPath(id), query }
  return requestProcess(deps, sandbox, request, ProcessView, { ms: grace_ms + GRACE_MS })
}

/** Inputs are written in the order in which the requests arrive; the guest guarantees it. */
export async function writeInput(
  deps: Deps,
  sandbox: SandboxRow,
  id: string,
  dataBase64: string,
  signal: AbortSignal,
): Promise<ProcessInputView> {
  const fault = checkProcessInput(dataBase64)
  if (fault) throw badField({ data_base64: fault })
  const request: GuestRequest & { body: Uint8Array } = {
    method: 'POST',
    route: 'processes',
    subpath: `${processPath(id)}/input`,
    body: decodeBase64(dataBase64)!, // Checked above.
  }
  const running = await ensureRunning(deps, sandbox, signal, checkRunningOrConflict)
  const limit = AbortSignal.timeout(INPUT_TIMEOUT_MS)
  return withProcessGuest(
    deps,
    running,
    async () => {
      try {
        return await requestGuest(deps, running, request, ProcessInputView, AbortSignal.any([limit, signal]))
      } catch (error) {
        if (limit.aborted) throw failure('wait_timeout', 'the process does not read its input')
        throw error
      }
    },
    signal,
  )
}

export const closeStdin = (deps: Deps, sandbox: SandboxRow, id: string): Promise<object> =>
  requestProcess(
    deps,
    sandbox,
    { method: 'POST', route: 'processes', subpath: `${processPath(id)}/stdin/close` },
    Empty,
  )

export const resizeProcess = (deps: Deps, sandbox: SandboxRow, id: string, body: ProcessResizeBody): Promise<object> =>
  requestProcess(
    deps,
    sandbox,
    { method: 'POST', route: 'processes', subpath: `${processPath(id)}/resize`, body },
    Empty,
  )

export const signalProcess = (deps: Deps, sandbox: SandboxRow, id: string, body: ProcessSignalBody): Promise<object> =>
  requestProcess(
    deps,
    sandbox,
    { method: 'POST', route: 'processes', subpath: `${processPath(id)}/signal`, body },
    Empty,
  )

/** Rejects anything that cannot be a process id, so that it never becomes part of a path. */
export function processPath(processId: string): string {
  if (!/^proc_[0-9A-Za-z]{1,64}$/.test(processId)) throw failure('process_not_found', 'process not found')
  return `/${processId}`
}

async function requestProcess<Schema extends TSchema>(
  deps: Deps,
  sandbox: SandboxRow,
  request: GuestRequest & { body?: object },
  schema: Schema,
  limit: { ms: number; signal?: AbortSignal } = { ms: RESPONSE_TIMEOUT_MS },
): Promise<Static<Schema>> {
  const running = await ensureRunning(deps, sandbox, limit.signal ?? NEVER, checkRunningOrConflict)
  const deadline = AbortSignal.timeout(limit.ms)
  const signal = limit.signal ? AbortSignal.any([deadline, limit.signal]) : deadline
  return withGuestUnrecorded(deps, running, () => requestGuest(deps, running, request, schema, signal), limit.signal)
}
