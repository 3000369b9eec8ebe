/**
 * What can be asked of a process that there is. Records and journals are the guest's; nothing of them is kept here, so
 * they survive whatever happens to this process. None of this counts as activity but input (wire 2).
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
import { askGuest } from './ask.ts'
import { ensureRunning } from './ensure-running.ts'
import { checkRunningState, withIdleGuest, withUsedGuest } from './failure.ts'

const ANSWER_LIMIT_MS = 15_000
/** A guest that was asked to wait says itself when the time is over; this is for one that does not. */
const GRACE_MS = 10_000
/** Clients give up at 60 s; before that they hear that the program does not read. */
const INPUT_LIMIT_MS = 50_000
const NEVER = new AbortController().signal

export const listProcesses = (deps: Deps, sandbox: SandboxRow): Promise<ProcessListView> =>
  ask(deps, sandbox, { method: 'GET', route: 'processes' }, ProcessListView)

export const getProcess = (deps: Deps, sandbox: SandboxRow, id: string): Promise<ProcessView> =>
  ask(deps, sandbox, { method: 'GET', route: 'processes', below: pathOf(id) }, ProcessView)

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
    below: `${pathOf(id)}/wait`,
    query: { scope: query.scope ?? 'leader', timeout_ms: String(timeoutMs) },
  }
  return ask(deps, sandbox, request, ProcessView, { ms: timeoutMs + GRACE_MS, signal })
}

/** Not bound to its caller: what was begun is finished. */
export function deleteProcess(
  deps: Deps,
  sandbox: SandboxRow,
  id: string,
  { grace_ms = PROCESS_GRACE_DEFAULT_MS }: ProcessDeleteQuery,
): Promise<ProcessView> {
  const query = { grace_ms: String(grace_ms) }
  const request: GuestRequest = { method: 'DELETE', route: 'processes', below: pathOf(id), query }
  return ask(deps, sandbox, request, ProcessView, { ms: grace_ms + GRACE_MS })
}

/** In the order in which the requests arrive; the guest keeps it. */
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
    below: `${pathOf(id)}/input`,
    body: decodeBase64(dataBase64)!, // Checked above.
  }
  const running = await ensureRunning(deps, sandbox, signal, checkRunningState)
  const limit = AbortSignal.timeout(INPUT_LIMIT_MS)
  return withUsedGuest(
    deps,
    running,
    async () => {
      try {
        return await askGuest(deps, running, request, ProcessInputView, AbortSignal.any([limit, signal]))
      } catch (error) {
        if (limit.aborted) throw failure('wait_timeout', 'the process does not read its input')
        throw error
      }
    },
    signal,
  )
}

export const closeStdin = (deps: Deps, sandbox: SandboxRow, id: string): Promise<object> =>
  ask(deps, sandbox, { method: 'POST', route: 'processes', below: `${pathOf(id)}/stdin/close` }, Empty)

export const resizeProcess = (deps: Deps, sandbox: SandboxRow, id: string, body: ProcessResizeBody): Promise<object> =>
  ask(deps, sandbox, { method: 'POST', route: 'processes', below: `${pathOf(id)}/resize`, body }, Empty)

export const signalProcess = (deps: Deps, sandbox: SandboxRow, id: string, body: ProcessSignalBody): Promise<object> =>
  ask(deps, sandbox, { method: 'POST', route: 'processes', below: `${pathOf(id)}/signal`, body }, Empty)

/** Any text may be asked for; what cannot be an id is absent and never becomes part of a path. */
export function pathOf(processId: string): string {
  if (!/^proc_[0-9A-Za-z]{1,64}$/.test(processId)) throw failure('process_not_found', 'process not found')
  return `/${processId}`
}

async function ask<Answer extends TSchema>(
  deps: Deps,
  sandbox: SandboxRow,
  request: GuestRequest & { body?: object },
  answer: Answer,
  limit: { ms: number; signal?: AbortSignal } = { ms: ANSWER_LIMIT_MS },
): Promise<Static<Answer>> {
  const running = await ensureRunning(deps, sandbox, limit.signal ?? NEVER, checkRunningState)
  const deadline = AbortSignal.timeout(limit.ms)
  const signal = limit.signal ? AbortSignal.any([deadline, limit.signal]) : deadline
  return withIdleGuest(deps, running, () => askGuest(deps, running, request, answer, signal), limit.signal)
}
