/**
 * Runs a command in a guest and yields its events; both kinds of exec use it.
 *
 * The command and its stdin are sent as frames while output is received, each at the pace of the other side. The first
 * event is `started` or `error`; the last is `error` or `exit`. A stream that ends without them was interrupted: that
 * throws, because there is no exit code. When the consumer stops reading, or the signal fires, the stream is reset and
 * the guest kills the command.
 *
 * A command that is interrupted because its sandbox is paused or deleted fails with `exec_interrupted`. It must not look
 * as if it had never started: a client would repeat it, and it would run twice.
 */
import type { ClientHttp2Stream } from 'node:http2'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { badField, failure } from '@warren/kit/failure'
import { matches } from '@warren/kit/matches'
import {
  checkEnvs,
  createGuestExecReader,
  type ExecBody,
  GUEST_EXEC_COMMAND_MAX_BYTES,
  GUEST_EXEC_PIECE_MAX_BYTES,
  type GuestExecCommand,
  GuestExecError,
  GuestExecExit,
  guestExecFrame,
  truncateUtf8,
} from '@warren/protocol'
import type { Static, TSchema } from 'typebox'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { parseJson, waitForHeaders } from '../hosts/client.ts'
import { resetStream } from '../hosts/session.ts'
import { checkGuestResponse, GUEST_TEXT_MAX_BYTES } from './failures.ts'

export type ExecEvent =
  | { type: 'started' }
  | { type: 'stdout'; bytes: Uint8Array }
  | { type: 'stderr'; bytes: Uint8Array }
  /** The command could not be started. */
  | { type: 'error'; exitCode: number; message: string }
  | { type: 'exit'; exitCode: number; timedOut: boolean }

/** The guest kills a command at its time limit; if it has not done so after this, the request is aborted. */
const LIMIT_GRACE_MS = 10_000
/** How long a guest may take to end its response after the exit event. */
const CLOSE_TIMEOUT_MS = 5_000

export async function* runCommand(
  deps: Deps,
  sandbox: SandboxRow,
  body: ExecBody,
  caller: AbortSignal,
): AsyncGenerator<ExecEvent, void> {
  const limitMs = deps.config.execLimitSeconds * 1000
  const signal = AbortSignal.any([caller, AbortSignal.timeout(limitMs + LIMIT_GRACE_MS)])
  const host = await deps.hosts.get(sandbox.host_id)
  const stream = host.openGuest(sandbox.id, { method: 'POST', route: 'exec' }, signal)
  let mayHaveStarted = true
  let ended = false
  try {
    sendCommand(stream, body, limitMs)
    const headers = await waitForHeaders(stream, signal)
    mayHaveStarted = headers[':status'] === 200
    await checkGuestResponse(stream, headers, signal)
    for await (const event of readEvents(stream)) {
      ended = event.type === 'exit' || event.type === 'error'
      yield event
    }
  } catch (error) {
    signal.throwIfAborted()
    if (mayHaveStarted) await checkInterrupted(deps, sandbox)
    throw error
  } finally {
    if (ended) closeStream(stream)
    else resetStream(stream)
  }
}

async function checkInterrupted(deps: Deps, sandbox: SandboxRow): Promise<void> {
  const now = await deps.loaders.sandbox(sandbox.id)
  if (!now || now.status === 'running') return
  throw failure('exec_interrupted', `the command was interrupted: sandbox is ${now.status}`)
}

/**
 * After the exit event only the end of the response can follow. A reset would kill processes that the command left in
 * the background.
 */
function closeStream(stream: ClientHttp2Stream): void {
  if (stream.closed) return
  stream.resume()
  const limit = setTimeout(() => resetStream(stream), CLOSE_TIMEOUT_MS)
  stream.once('close', () => clearTimeout(limit))
}

/** Checks that the schema cannot express. */
export function checkCommand(sandbox: SandboxRow, body: ExecBody): void {
  if (body.cmd.includes('\0')) throw badField({ cmd: 'must not contain a NUL character' })
  if (body.args?.some((arg) => arg.includes('\0'))) throw badField({ args: 'must not contain a NUL character' })
  const env = body.env ?? {}
  const undeclared = Object.keys(env).find((name) => !sandbox.env_names.includes(name))
  if (undeclared !== undefined) {
    throw badField({ env: `${undeclared.slice(0, 100)} was not declared in the envs of the sandbox` })
  }
  const fault = checkEnvs(env)
  if (fault) throw badField({ env: fault })
  if (commandBytes(body, 0).length > GUEST_EXEC_COMMAND_MAX_BYTES) {
    throw badField({ args: `cmd, args and env must not take more than ${GUEST_EXEC_COMMAND_MAX_BYTES} bytes` })
  }
}

function sendCommand(stream: ClientHttp2Stream, body: ExecBody, limitMs: number): void {
  const command = guestExecFrame('command', commandBytes(body, limitMs))
  // Headers, command and end in one write, so that the guest wakes up once.
  if (!body.stdin) return void stream.end(command)
  stream.write(command)
  // Fails when the command exits without reading its stdin; the guest's response is what counts.
  pipeline(Readable.from(stdinFrames(body.stdin)), stream).catch(() => {})
}

function* stdinFrames(text: string): Generator<Uint8Array> {
  const stdin = Buffer.from(text, 'utf8')
  for (let from = 0; from < stdin.length; from += GUEST_EXEC_PIECE_MAX_BYTES) {
    yield guestExecFrame('stdin', stdin.subarray(from, from + GUEST_EXEC_PIECE_MAX_BYTES))
  }
}

function commandBytes({ cmd, args, env, stdin }: ExecBody, timeout_ms: number): Buffer {
  const command: GuestExecCommand = { cmd, args: args ?? [], env: env ?? {}, stdin: !!stdin, timeout_ms }
  return Buffer.from(JSON.stringify(command), 'utf8')
}

async function* readEvents(stream: ClientHttp2Stream): AsyncGenerator<ExecEvent, void> {
  const reader = createGuestExecReader()
  let started = false
  // Without the option, leaving this loop would reset the stream.
  for await (const chunk of stream.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    for (const { type, payload } of reader.push(chunk)) {
      if (type === 'error' && !started) return yield toError(parse(GuestExecError, payload))
      if (type === 'started' && !started) {
        started = true
        yield { type: 'started' }
      } else if (started && (type === 'stdout' || type === 'stderr')) yield { type, bytes: payload }
      else if (started && type === 'exit') return yield toExit(parse(GuestExecExit, payload))
      else throw new Error(`the guest sent an unexpected ${type} frame`)
    }
  }
  throw new Error('guest stream closed before an exit event')
}

const toError = ({ kind, message }: GuestExecError): ExecEvent => ({
  type: 'error',
  exitCode: kind === 'not_found' ? 127 : 126,
  message: truncateUtf8(message, GUEST_TEXT_MAX_BYTES),
})

function toExit({ code, signal, timed_out: timedOut }: GuestExecExit): ExecEvent {
  if ((code === undefined) === (signal === undefined))
    throw new Error('the guest sent an exit without exactly one of code and signal')
  return { type: 'exit', exitCode: code ?? 128 + signal!, timedOut }
}

function parse<Schema extends TSchema>(schema: Schema, payload: Uint8Array): Static<Schema> {
  const value = parseJson(Buffer.from(payload))
  if (!matches(schema, value)) throw new Error('the guest sent a frame that does not match its schema')
  return value as Static<Schema>
}

export const limitNotice = (deps: Deps): string => `[killed: exceeded ${deps.config.execLimitSeconds} s]`
