/**
 * The output of a process as the frames of the connect stream (wire 6), from any `seq` on: what is kept, then what comes.
 *
 * Gaps are worse than ends: what the guest sends is checked number by number, and whatever is wrong with it, or a host
 * or guest that goes away, ends in an `error` frame. An `exit` comes only from an exit that the guest told.
 */
import type { ClientHttp2Stream } from 'node:http2'
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
import { Value } from 'typebox/value'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { parseJson, responseOf } from '../hosts/client.ts'
import { resetStream } from '../hosts/session.ts'
import { ensureRunning } from './ensure-running.ts'
import { checkGuestAnswer, checkRunningState, withIdleGuest } from './failure.ts'
import { pathOf } from './processes.ts'

export type ProcessOutput = AsyncGenerator<Exclude<ProcessFrame, { type: 'heartbeat' }>, void>

/** Resolves when the guest has agreed; failures until then are ordinary ones. Whoever stops reading calls `return`. */
export async function openProcessOutput(
  deps: Deps,
  sandbox: SandboxRow,
  processId: string,
  after: number,
  signal: AbortSignal,
): Promise<ProcessOutput> {
  const below = `${pathOf(processId)}/connect`
  const running = await ensureRunning(deps, sandbox, signal, checkRunningState)
  return withIdleGuest(
    deps,
    running,
    async () => {
      const host = await deps.hosts.get(running.host_id)
      const query = { after: String(after) }
      const stream = host.openGuest(sandbox.id, { method: 'GET', route: 'processes', below, query }, signal)
      try {
        await checkGuestAnswer(stream, await responseOf(stream, signal), signal)
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
  // From 0 on everything that is kept comes, whose first number only the guest knows.
  let seq = after === 0 ? undefined : after
  try {
    for await (const chunk of stream as AsyncIterable<Buffer>) {
      deps.activity.recordUse(sandbox.id)
      for (const frame of reader.push(chunk)) {
        const line = toLine(frame, seq)
        yield line
        if (line.type !== 'data') return
        seq = line.seq
      }
    }
    throw new Error('the guest ended the output of a process before its end')
  } catch (error) {
    if (signal.aborted) throw error
    deps.log.warn({ err: error, sandbox: sandbox.id }, 'the output of a process was cut')
    yield { type: 'error', error: await whyCut(deps, sandbox) }
  } finally {
    resetStream(stream)
  }
}

function toLine({ type, payload }: GuestConnectFrame, seqBefore: number | undefined) {
  if (type === 'exit') return toExit(parseJson(Buffer.from(payload)))
  if (type === 'error') return toError(parseJson(Buffer.from(payload)))
  const { seq, bytes } = parseGuestOutput(payload, seqBefore)
  return { type: 'data' as const, seq, stream: type, data_base64: encodeBase64(bytes) }
}

function toExit(exit: unknown) {
  if (!Value.Check(GuestProcessExit, exit)) throw new Error('the guest sent an exit that does not fit')
  return 'signal' in exit
    ? { type: 'exit' as const, signal: exit.signal }
    : { type: 'exit' as const, exit_code: exit.exit_code }
}

function toError(error: unknown) {
  if (!Value.Check(GuestFailure, error)) throw new Error('the guest sent an error that does not fit')
  const { code, oldest_available_seq: oldest } = error
  if (code === 'output_offset_expired' && oldest !== undefined) return offsetExpiredFrame(oldest)
  return { type: 'error' as const, error: 'the process was lost: how it ended is not known' }
}

/** A pause or the end of the sandbox is told as such. */
async function whyCut(deps: Deps, sandbox: SandboxRow): Promise<string> {
  const now = await deps.loaders.sandbox(sandbox.id).catch(() => undefined)
  if (now && now.status !== 'running') return `sandbox is ${now.status}, expected running`
  return 'guest unreachable'
}
