/**
 * Reads the output of a process as the frames of the connect stream (docs/api.md#processes), starting after any `seq`:
 * first the retained output, then new output.
 *
 * A gap would be worse than an early end. Therefore every sequence number from the guest is checked, and invalid data
 * or a lost host or guest ends the stream with an `error` frame. An `exit` frame is sent only for an exit that the
 * guest reported.
 */
import type { ClientHttp2Stream } from 'node:http2'
import { matches } from '@warren/kit/matches'
import {
  createGuestConnectReader,
  encodeBase64,
  type GuestConnectFrame,
  GuestFailure,
  GuestProcessExit,
  offsetExpiredFrame,
  type ProcessFrame,
  parseGuestOutput,
} from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { parseJson, waitForHeaders } from '../hosts/client.ts'
import { resetStream } from '../hosts/session.ts'
import { ensureRunning } from './ensure-running.ts'
import { checkGuestResponse } from './failures.ts'
import { processPath } from './processes.ts'
import { checkRunningOrConflict, withGuestUnrecorded } from './with-guest.ts'

export type ProcessOutput = AsyncGenerator<Exclude<ProcessFrame, { type: 'heartbeat' }>, void>

/**
 * Resolves when the guest has accepted; failures before that are ordinary ones. A consumer that stops early must call
 * `return`.
 */
export async function openProcessOutput(
  deps: Deps,
  sandbox: SandboxRow,
  processId: string,
  after: number,
  signal: AbortSignal,
): Promise<ProcessOutput> {
  const subpath = `${processPath(processId)}/connect`
  const running = await ensureRunning(deps, sandbox, signal, checkRunningOrConflict)
  return withGuestUnrecorded(
    deps,
    running,
    async () => {
      const host = await deps.hosts.get(running.host_id)
      const query = { after: String(after) }
      const stream = host.openGuest(sandbox.id, { method: 'GET', route: 'processes', subpath, query }, signal)
      try {
        await checkGuestResponse(stream, await waitForHeaders(stream, signal), signal)
      } catch (error) {
        resetStream(stream)
        throw error
      }
      return readOutput(deps, sandbox, stream, after, signal)
    },
    signal,
  )
}

async function* readOutput(
  deps: Deps,
  sandbox: SandboxRow,
  stream: ClientHttp2Stream,
  after: number,
  signal: AbortSignal,
): ProcessOutput {
  const reader = createGuestConnectReader()
  // 0 asks for all retained output; only the guest knows its first sequence number.
  let seq = after === 0 ? undefined : after
  try {
    for await (const chunk of stream as AsyncIterable<Buffer>) {
      deps.activity.recordUse(sandbox.id)
      for (const frame of reader.push(chunk)) {
        const line = toFrame(frame, seq)
        yield line
        if (line.type !== 'data') return
        seq = line.seq
      }
    }
    throw new Error('guest stream closed before the process exited')
  } catch (error) {
    if (signal.aborted) throw error
    deps.log.warn({ err: error, sandbox: sandbox.id }, 'process output was interrupted')
    yield { type: 'error', error: await interruptionReason(deps, sandbox) }
  } finally {
    resetStream(stream)
  }
}

function toFrame({ type, payload }: GuestConnectFrame, seqBefore: number | undefined) {
  if (type === 'exit') return toExit(parseJson(Buffer.from(payload)))
  if (type === 'error') return toError(parseJson(Buffer.from(payload)))
  const { seq, bytes } = parseGuestOutput(payload, seqBefore)
  return { type: 'data' as const, seq, stream: type, data_base64: encodeBase64(bytes) }
}

function toExit(exit: unknown) {
  if (!matches(GuestProcessExit, exit)) throw new Error('the guest sent an exit that does not match its schema')
  return 'signal' in exit
    ? { type: 'exit' as const, signal: exit.signal }
    : { type: 'exit' as const, exit_code: exit.exit_code }
}

function toError(error: unknown) {
  if (!matches(GuestFailure, error)) throw new Error('the guest sent an error that does not match its schema')
  const { code, oldest_available_seq: oldest } = error
  if (code === 'output_offset_expired' && oldest !== undefined) return offsetExpiredFrame(oldest)
  return { type: 'error' as const, error: 'the process was lost: its exit status is unknown' }
}

/** If the sandbox was paused or has ended, the error says so. */
async function interruptionReason(deps: Deps, sandbox: SandboxRow): Promise<string> {
  const now = await deps.loaders.sandbox(sandbox.id).catch(() => undefined)
  if (now && now.status !== 'running') return `sandbox is ${now.status}, expected running`
  return 'guest unreachable'
}
