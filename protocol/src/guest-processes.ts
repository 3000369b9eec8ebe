/**
 * Managed processes as the guest agent serves them. `/processes…` corresponds to `/v1/sandboxes/{id}/processes…` of the
 * public API, with the same names and semantics. Records are complete ProcessViews including id and times: they are
 * checked and then returned unchanged.
 *
 *   POST   /processes                     GuestProcessStart → GuestProcess      responds after the exec, `running`
 *   GET    /processes                     → GuestProcessList                    oldest first
 *   GET    /processes/<id>                → GuestProcess
 *   DELETE /processes/<id>?grace_ms=      → GuestProcess                        responds when the whole tree has ended
 *   GET    /processes/<id>/connect?after= → output frames (see OUTPUT STREAM)
 *   GET    /processes/<id>/wait?scope=leader|tree&timeout_ms=   → GuestProcess, or 408
 *   POST   /processes/<id>/input          raw bytes, at most 256 KiB → ProcessInputView
 *   POST   /processes/<id>/stdin/close    → {}
 *   POST   /processes/<id>/resize         ProcessResizeBody → {}
 *   POST   /processes/<id>/signal         ProcessSignalBody → {}
 *
 * FAILURES are GuestFailure. These have the status and code of the public API: 404 process_not_found, 409
 * wrong_process_kind, 409 process_exited, 409 stdin_closed, 429 process_limit_reached, 408 wait_timeout, 410
 * output_offset_expired (with `oldest_available_seq`). These are about fields of the request: 400 invalid_cmd, 400
 * invalid_cwd (both leave a `failed` record), 400 invalid_signal, 400 invalid (the message names the field). 413
 * too_large. wrong_process_kind takes precedence over process_exited.
 *
 * LIFETIME. Processes, records and journals belong to the VM, not to a session: they survive restarts of the host agent,
 * pause, resume and fork. A request that is reset or interrupted has no further effect on the process: a start
 * continues, a DELETE finishes; only input stops where it is. A caller that lost a response repeats the question with
 * GET. All waiting uses the monotonic clock.
 *
 * TREES. Each process has a dedicated cgroup, so descendants are found even if they fork twice or create a session.
 * `exited` refers to the leader, `tree_exited` to all of them. DELETE sends SIGTERM to the whole tree, waits until all
 * have ended or `grace_ms` have passed, and kills the rest. A process that exits on SIGTERM keeps its real exit code.
 *
 * INPUT is written in the order of the requests. Each one responds when the pipe or terminal of the program has accepted
 * all bytes, so a program that does not read delays its input requests and nothing else. When the leader exits, waiting
 * requests get process_exited and stdin is closed.
 *
 * OUTPUT is always written to the journal, with or without readers: 1 MiB per process, 32 MiB for all, oldest dropped
 * first, events of at most 32 KiB. Readers cannot block a program for long: it waits for readers that are about to lose
 * output, at most half a second for those that do not read, and readers that do read cannot slow it below 4 MiB/s.
 * `output` is all zero before the first event; when all events are gone, `oldest_seq` is `newest_seq` + 1. `wait`
 * responds when everything that the leader wrote to a pipe is counted.
 *
 * OUTPUT STREAM (connect). Status 200, then frames (guest-frames.ts):
 *
 *   stdout, stderr, pty  8 bytes big-endian `seq`, then 1 byte to 32 KiB of output; `seq` increases by exactly 1
 *   exit                 JSON GuestProcessExit, the last frame; sent after all output, at most 2 s after the leader's exit
 *   error                JSON GuestFailure, the last frame. `output_offset_expired`: the reader was too slow, with
 *                        `oldest_available_seq`. `process_failed`: the record is `failed` and there is no exit.
 *                        `process_not_found`: the record was dropped for a newer one during the read
 *
 * A stream that ends without exit or error was interrupted: connect again with the last `seq`. Without `after`, or with
 * 0, everything in the journal is replayed and the request never fails; an `after` older than the journal is the 410;
 * one newer than the newest event waits. The guest sends no heartbeats; the control plane adds them. Any number of
 * readers can connect; the only buffer of a slow reader is its stream window. Output that descendants write after the
 * exit is still journaled and replayed.
 *
 * LIMITS. The host sends the configurable ones with each start; otherwise those of process.ts apply. A list of 256
 * records has at most about 5 MiB.
 */
import { type Static, Type } from 'typebox'
import { createGuestFrameReader, type GuestFrame } from './guest-frames.ts'
import { ProcessView } from './process.ts'
import { PROCESS_EVENT_MAX_BYTES } from './process-stream.ts'

/** Limit of the body of a start: agents before GUEST_PROTOCOL.BUILDS accept no more. */
export const GUEST_PROCESS_START_MAX_BYTES = 256 * 1024
/** The same for a step of a build: a script of 64 KiB and as many variables, and JSON may take six bytes for one. */
export const GUEST_BUILD_STEP_MAX_BYTES = 1024 * 1024
/** A record stores at most this much of cmd and args together; `…` replaces the omitted arguments. */
export const GUEST_PROCESS_ARGS_MAX_BYTES = 16 * 1024

export const GuestOwner = Type.Object({
  user: Type.String({ description: 'Name or number.' }),
  group: Type.Optional(Type.String({ description: 'Name or number; otherwise the groups of the user.' })),
})
export type GuestOwner = Static<typeof GuestOwner>

/**
 * Makes the process a step of a build (GUEST_PROTOCOL.BUILDS): stdin is empty, `env` is all of its environment except that
 * HOME is added if it is missing, and `cwd` is created if it is missing. An unknown user or group is 400 invalid_owner.
 */
export const GuestBuildStep = Type.Object({
  owner: GuestOwner,
  umask: Type.Integer({ minimum: 0, maximum: 0o777 }),
  files: Type.Array(Type.Object({ path: Type.String(), mode: Type.Integer(), content: Type.String() }), {
    description: 'Exist from before the start until the process has exited.',
  }),
})
export type GuestBuildStep = Static<typeof GuestBuildStep>

export const GuestProcessStart = Type.Object({
  cmd: Type.Optional(
    Type.String({ description: 'As in exec. Optional with `pty`, where it defaults to the login shell of root.' }),
  ),
  args: Type.Optional(Type.Array(Type.String())),
  cwd: Type.Optional(Type.String({ description: 'Defaults to /root, or to / if that does not exist.' })),
  env: Type.Optional(
    Type.Record(Type.String(), Type.String(), { description: 'Added to the variables of the sandbox.' }),
  ),
  pty: Type.Optional(
    Type.Object({
      rows: Type.Optional(Type.Integer({ minimum: 0, maximum: 65_535, description: 'Defaults to 24.' })),
      cols: Type.Optional(Type.Integer({ minimum: 0, maximum: 65_535, description: 'Defaults to 80.' })),
    }),
  ),
  build: Type.Optional(GuestBuildStep),
  live_max: Type.Optional(Type.Integer({ minimum: 1, description: 'Defaults to PROCESSES_LIVE_MAX.' })),
  records_max: Type.Optional(Type.Integer({ minimum: 1, description: 'Defaults to PROCESS_RECORDS_MAX.' })),
})
export type GuestProcessStart = Static<typeof GuestProcessStart>

export const GuestProcess = ProcessView
export type GuestProcess = ProcessView

export const GuestProcessList = Type.Object({ processes: Type.Array(GuestProcess) })
export type GuestProcessList = Static<typeof GuestProcessList>

/** Contains exactly one of the two. */
export const GuestProcessExit = Type.Union([
  Type.Object({ exit_code: Type.Integer({ minimum: 0, maximum: 255 }) }),
  Type.Object({ signal: Type.String({ pattern: '^SIG[A-Z0-9+-]+$' }) }),
])
export type GuestProcessExit = Static<typeof GuestProcessExit>

/** Frames that exec has too have the same number. */
export const GUEST_CONNECT_FRAME = { stdout: 1, stderr: 2, error: 5, exit: 6, pty: 7 } as const
export type GuestConnectFrameType = keyof typeof GUEST_CONNECT_FRAME
export type GuestConnectFrame = GuestFrame<GuestConnectFrameType>

const SEQ_BYTES = 8

export const createGuestConnectReader = () =>
  createGuestFrameReader(GUEST_CONNECT_FRAME, SEQ_BYTES + PROCESS_EVENT_MAX_BYTES)

/** Parses a stdout, stderr or pty frame. Throws on a gap: the caller must not miss output without notice. */
export function parseGuestOutput(
  payload: Uint8Array,
  seqBefore: number | undefined,
): { seq: number; bytes: Uint8Array } {
  if (payload.length <= SEQ_BYTES) throw new Error('the guest sent output without bytes')
  const seq = Number(new DataView(payload.buffer, payload.byteOffset).getBigUint64(0))
  if (!Number.isSafeInteger(seq) || seq < 1 || (seqBefore !== undefined && seq !== seqBefore + 1)) {
    throw new Error(`the guest sent output ${seq} after ${seqBefore}`)
  }
  return { seq, bytes: payload.subarray(SEQ_BYTES) }
}
