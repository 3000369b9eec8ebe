/** Runs one step in the guest as a managed process (protocol/src/guest-processes.ts) and copies its output to the log. */
import type { ClientHttp2Session } from 'node:http2'
import { guestActionOf, type RunStep, type WorkdirStep } from '@warren/dockerfile'
import { errorText } from '@warren/kit/error-text'
import {
  createGuestConnectReader,
  GUEST_BUILD_STEP_MAX_BYTES,
  type GuestBuildStep,
  GuestFailure,
  GuestProcess,
  GuestProcessExit,
  type HostBuildStep,
  parseGuestOutput,
} from '@warren/protocol'
import { Type } from 'typebox'
import { Value } from 'typebox/value'
import { callGuest, GuestError } from '../guest/call-guest.ts'
import { openGuestStream } from '../guest/channel.ts'
import type { Vmm } from '../vmm/vmm.ts'
import { BuildFailure } from './failure.ts'
import type { BuildLog } from './log.ts'

const UMASK = 0o022
/** After the output was lost several times in a row something is wrong with the guest. */
const RECONNECTS_MAX = 20
const WAIT_MS = 30_000

export type StepContext = {
  vmm: Vmm
  log: BuildLog
  /** The operator's variables, such as a proxy. Those of the step override them. */
  operatorEnv: Readonly<Record<string, string>>
}

/** Throws a BuildFailure if the step fails. What it left running is killed. */
export async function runStep(context: StepContext, step: HostBuildStep, signal: AbortSignal): Promise<void> {
  const { vmm } = context
  // The control plane sends steps as the package has planned them.
  const action = guestActionOf(step as RunStep | WorkdirStep)
  const owner = { user: action.owner.user, ...(action.owner.group !== undefined && { group: action.owner.group }) }
  const { session } = await vmm.channel(signal)
  if (action.kind === 'makeFolder') {
    const body = { path: action.path, mode: action.mode, owner }
    const request = { method: 'POST', path: '/folders', body, response: Type.Object({}) } as const
    await callGuest(session, request, signal).catch((error) => throwRefused(step, error))
    return
  }
  const build: GuestBuildStep = { owner, umask: UMASK, files: action.files }
  const [cmd, ...args] = action.argv
  const body = { cmd, args, cwd: action.cwd, env: { ...context.operatorEnv, ...action.env }, build }
  if (Buffer.byteLength(JSON.stringify(body)) > GUEST_BUILD_STEP_MAX_BYTES) {
    throw new BuildFailure('step_failed', `${describe(step)} takes more than ${GUEST_BUILD_STEP_MAX_BYTES} bytes`)
  }
  const request = { method: 'POST', path: '/processes', body, response: GuestProcess } as const
  const { process_id: id } = await callGuest(session, request, signal).catch((error) => throwRefused(step, error))
  const exit = await followOutput(context, id, signal)
  context.log.flush()
  const end = { method: 'DELETE', path: `/processes/${id}?grace_ms=0`, response: GuestProcess } as const
  await callGuest((await vmm.channel(signal)).session, end, signal)
  if ('signal' in exit) throw new BuildFailure('step_failed', `${describe(step)} was ended by ${exit.signal}`)
  if (exit.exit_code !== 0) {
    throw new BuildFailure('step_failed', `${describe(step)} ended with exit code ${exit.exit_code}`)
  }
}

const describe = ({ line, text }: HostBuildStep): string => `line ${line}: ${shorten(text)}`
const shorten = (text: string): string => (text.length > 200 ? `${text.slice(0, 200)}…` : text)

/** The program does not exist, the user does not exist: what the author of the Dockerfile can fix. */
function throwRefused(step: HostBuildStep, error: unknown): never {
  const failure = error instanceof GuestError ? error.failure : undefined
  if (!failure || failure.code === 'internal') throw error
  const message = failure.message.slice(0, 500)
  throw new BuildFailure('step_failed', `${describe(step)} failed to start: ${message}`, { cause: error })
}

/**
 * The output is numbered and remains in the guest for a while, so a connection that is lost is opened again. Once the log
 * takes no more, only the exit is awaited: the guest agent reads the output all the same.
 */
async function followOutput({ vmm, log }: StepContext, id: string, signal: AbortSignal): Promise<GuestProcessExit> {
  let seq = 0
  for (let attempt = 1; ; attempt++) {
    const { session } = await vmm.channel(signal)
    try {
      if (log.isDropping) return await waitForExit(session, id, signal)
      const exit = await readOutput(session, id, seq, log, signal, (latest) => {
        seq = latest
        attempt = 1
      })
      if (exit === 'expired') {
        log.writeLine('Some output was lost: the step wrote faster than it could be read.')
        seq = 0
      } else if (exit !== 'full') return exit
    } catch (error) {
      signal.throwIfAborted()
      if (attempt >= RECONNECTS_MAX) throw error
    }
  }
}

async function readOutput(
  session: ClientHttp2Session,
  id: string,
  after: number,
  log: BuildLog,
  signal: AbortSignal,
  onOutput: (seq: number) => void,
): Promise<GuestProcessExit | 'expired' | 'full'> {
  const path = `/processes/${id}/connect${after > 0 ? `?after=${after}` : ''}`
  const stream = openGuestStream(session, { ':method': 'GET', ':path': path }, { signal, endStream: true })
  const reader = createGuestConnectReader()
  let seq = after === 0 ? undefined : after
  try {
    for await (const chunk of stream) {
      for (const { type, payload } of reader.push(chunk as Buffer)) {
        if (type === 'exit') return parseExit(payload)
        if (type === 'error') return explain(payload)
        const output = parseGuestOutput(payload, seq)
        seq = output.seq
        log.write(output.bytes)
        onOutput(seq)
        if (log.isDropping) return 'full'
      }
    }
  } finally {
    stream.close()
  }
  throw new GuestError('the guest closed the stream before the step ended')
}

function explain(payload: Uint8Array): 'expired' {
  const failure: unknown = JSON.parse(Buffer.from(payload).toString('utf8'))
  if (Value.Check(GuestFailure, failure) && failure.code === 'output_offset_expired') return 'expired'
  throw new GuestError(`the guest ended the output of a step: ${JSON.stringify(failure).slice(0, 500)}`)
}

function parseExit(payload: Uint8Array): GuestProcessExit {
  const exit: unknown = JSON.parse(Buffer.from(payload).toString('utf8'))
  if (!Value.Check(GuestProcessExit, exit)) throw new GuestError('the guest sent an exit that is not valid')
  return exit
}

async function waitForExit(session: ClientHttp2Session, id: string, signal: AbortSignal): Promise<GuestProcessExit> {
  for (;;) {
    const path = `/processes/${id}/wait?timeout_ms=${WAIT_MS}`
    try {
      const ended = await callGuest(session, { method: 'GET', path, response: GuestProcess }, signal)
      if (typeof ended.exit_code === 'number') return { exit_code: ended.exit_code }
      return { signal: ended.signal ?? 'SIGKILL' }
    } catch (error) {
      if (error instanceof GuestError && error.failure?.code === 'wait_timeout') continue
      throw new Error(`failed to wait for a step: ${errorText(error)}`, { cause: error })
    }
  }
}
