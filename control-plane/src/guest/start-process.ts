/** Starts a managed process in a guest. It keeps running when the request that started it ends. */
import { badField } from '@warren/kit/failure'
import {
  checkEnvs,
  checkProcessCommand,
  GUEST_PROCESS_START_MAX_BYTES,
  type GuestProcessStart,
  type ProcessCreateBody,
  ProcessView,
} from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { ensureRunning } from './ensure-running.ts'
import { requestGuest } from './request-guest.ts'
import { checkRunningOrConflict, withProcessGuest } from './with-guest.ts'

/** A guest under load may take seconds for a fork and exec, but not longer. */
const START_TIMEOUT_MS = 30_000

export async function startProcess(
  deps: Deps,
  sandbox: SandboxRow,
  body: ProcessCreateBody,
  signal: AbortSignal,
): Promise<ProcessView> {
  const start = parseStart(deps, body)
  const running = await ensureRunning(deps, sandbox, signal, checkRunningOrConflict)
  return withProcessGuest(deps, running, () =>
    requestGuest(
      deps,
      running,
      { method: 'POST', route: 'processes', body: start },
      ProcessView,
      AbortSignal.timeout(START_TIMEOUT_MS),
    ),
  )
}

function parseStart(deps: Deps, { cmd, args, cwd, env, pty }: ProcessCreateBody): GuestProcessStart {
  const fault = checkProcessCommand({ cmd, pty })
  if (fault) throw badField({ cmd: fault })
  if (cmd?.includes('\0')) throw badField({ cmd: NO_NUL })
  if (cwd?.includes('\0')) throw badField({ cwd: NO_NUL })
  if (args?.some((arg) => arg.includes('\0'))) throw badField({ args: NO_NUL })
  const envFault = checkEnvs(env ?? {})
  if (envFault) throw badField({ env: envFault })
  const start: GuestProcessStart = {
    ...(cmd ? { cmd } : {}),
    ...(args ? { args } : {}),
    ...(cwd ? { cwd } : {}),
    ...(env ? { env } : {}),
    ...(pty ? { pty: { rows: pty.rows ?? 0, cols: pty.cols ?? 0 } } : {}),
    live_max: deps.config.processesMax,
    records_max: deps.config.processRecordsMax,
  }
  if (Buffer.byteLength(JSON.stringify(start)) > GUEST_PROCESS_START_MAX_BYTES) {
    throw badField({ args: `cmd, args and env must not take more than ${GUEST_PROCESS_START_MAX_BYTES} bytes` })
  }
  return start
}

const NO_NUL = 'must not contain a NUL character'
