/**
 * Managed processes, as the guest's agent serves them (spec 2.11, 3.2, 4.4, 7; wire 6). What the public API calls
 * `/v1/sandboxes/{id}/processes…` is here `/processes…`, with the same words and the same meaning. Records are
 * ProcessView as it stands, times and id included: check them, then pass them on.
 *
 *   POST   /processes                     GuestProcessStart → GuestProcess      answers after the exec, `running`
 *   GET    /processes                     → GuestProcessList                    oldest first
 *   GET    /processes/<id>                → GuestProcess
 *   DELETE /processes/<id>?grace_ms=      → GuestProcess                        answers when the whole tree has ended
 *   GET    /processes/<id>/connect?after= → connect frames (below)
 *   GET    /processes/<id>/wait?scope=leader|tree&timeout_ms=   → GuestProcess  or 408
 *   POST   /processes/<id>/input          raw bytes, at most 256 KiB → ProcessInputView
 *   POST   /processes/<id>/stdin/close    → {}
 *   POST   /processes/<id>/resize         ProcessResizeBody → {}
 *   POST   /processes/<id>/signal         ProcessSignalBody → {}
 *
 * FAILURES are GuestFailure. One-to-one with spec 7, status and code: 404 process_not_found, 409 wrong_process_kind,
 * 409 process_exited, 409 stdin_closed, 429 process_limit_reached, 408 wait_timeout, 410 output_offset_expired (with
 * `oldest_available_seq`). For fields of the caller: 400 invalid_cmd, 400 invalid_cwd (both leave a `failed` record),
 * 400 invalid_signal, 400 invalid (message names the field). 413 too_large. wrong_process_kind comes before
 * process_exited.
 *
 * WHAT LASTS. Processes, records and journals belong to the machine, not to a session: they survive hosts that come
 * and go, pause, resume and fork. A request that is reset or cut changes nothing: a start goes on, a DELETE finishes.
 * Only input stops where it is. Whoever lost an answer asks again by GET. All waiting is by the monotonic clock.
 *
 * TREES. Each process has a cgroup of its own, so children that fork twice or make their own session are found.
 * `exited` speaks of the leader; `tree_exited` of everything. DELETE sends SIGTERM to all of the tree, waits `grace_ms`
 * or until all have ended, kills the rest. A process that ends by itself on SIGTERM keeps its real exit code.
 *
 * INPUT is written in the order in which the requests arrive; each answers when the program's pipe or terminal has
 * taken all of it, so a program that does not read holds up its input requests, and nothing else. At the end of the
 * leader those that wait get process_exited, and stdin is closed.
 *
 * OUTPUT goes to the journal, whoever reads or not: 1 MiB a process, 32 MiB for all, the oldest out first, events of at
 * most 32 KiB. Nobody can hold up a program for long: it waits for readers who are about to lose something, half a
 * second at most for those who stand still, and those who read on cannot slow it below 4 MiB/s. `output` is all zero before the first event; when all events
 * are gone, `oldest_seq` is `newest_seq` + 1. `wait` answers when all that the leader wrote to a pipe is counted.
 *
 * CONNECT. 200, then frames as in guest-frames.ts:
 *
 *   stdout, stderr, pty  8 bytes big-endian `seq`, then the bytes (1 to 32 KiB); `seq` rises by exactly 1
 *   exit                 JSON GuestProcessExit; the last frame. When all output has come, at latest 2 s after the leader
 *   error                JSON GuestFailure; the last frame. `output_offset_expired`: the reader was too slow, with
 *                        `oldest_available_seq`. `process_failed`: a `failed` record, there is no exit.
 *                        `process_not_found`: the record made room for a newer one while it was read
 *
 * A stream that ends without exit or error was cut: connect again with the last `seq`. `after` absent or 0 replays all
 * that is kept and never fails; an older `after` than is kept is the 410; a newer one than there is just waits. No
 * heartbeats come from the guest: whoever speaks to the client makes them. Any number of readers; the window of the
 * stream is the only buffer of a slow one. What descendants write after the exit is still kept and replayed.
 *
 * LIMITS. The host gives those that are configurable with each start; without them those of process.ts hold. A list of
 * 256 records is at most some 5 MiB.
 */
import { type Static, Type } from 'typebox'
import { createGuestFrameReader, type GuestFrame } from './guest-frames.ts'
import { ProcessView } from './process.ts'
import { PROCESS_EVENT_MAX_BYTES } from './process-stream.ts'

/** Of the body of a start. */
export const GUEST_PROCESS_START_MAX_BYTES = 256 * 1024
/** A record keeps no more of cmd and args together; `…` stands for the arguments that were left out. */
export const GUEST_PROCESS_ARGS_KEPT_BYTES = 16 * 1024

export const GuestProcessStart = Type.Object({
  cmd: Type.Optional(Type.String({ description: 'As for exec. Absent with `pty`: the login shell of root.' })),
  args: Type.Optional(Type.Array(Type.String())),
  cwd: Type.Optional(Type.String({ description: '/root when absent, or / where there is no /root.' })),
  env: Type.Optional(Type.Record(Type.String(), Type.String(), { description: 'On top of the envs of the identity.' })),
  pty: Type.Optional(
    Type.Object({
      rows: Type.Optional(Type.Integer({ minimum: 0, maximum: 65_535, description: '0 or absent: 24.' })),
      cols: Type.Optional(Type.Integer({ minimum: 0, maximum: 65_535, description: '0 or absent: 80.' })),
    }),
  ),
  live_max: Type.Optional(Type.Integer({ minimum: 1, description: 'Instead of PROCESSES_LIVE_MAX.' })),
  records_max: Type.Optional(Type.Integer({ minimum: 1, description: 'Instead of PROCESS_RECORDS_MAX.' })),
})
export type GuestProcessStart = Static<typeof GuestProcessStart>

export const GuestProcess = ProcessView
export type GuestProcess = ProcessView

export const GuestProcessList = Type.Object({ processes: Type.Array(GuestProcess) })
export type GuestProcessList = Static<typeof GuestProcessList>

/** Exactly one of the two. */
export const GuestProcessExit = Type.Union([
  Type.Object({ exit_code: Type.Integer({ minimum: 0, maximum: 255 }) }),
  Type.Object({ signal: Type.String({ pattern: '^SIG[A-Z0-9+-]+$' }) }),
])
export type GuestProcessExit = Static<typeof GuestProcessExit>

/** Numbered as the frames of exec, where they mean the same. */
export const GUEST_CONNECT_FRAME = { stdout: 1, stderr: 2, error: 5, exit: 6, pty: 7 } as const
export type GuestConnectFrameType = keyof typeof GUEST_CONNECT_FRAME
export type GuestConnectFrame = GuestFrame<GuestConnectFrameType>

const SEQ_BYTES = 8

export const createGuestConnectReader = () =>
  createGuestFrameReader(GUEST_CONNECT_FRAME, SEQ_BYTES + PROCESS_EVENT_MAX_BYTES)

/** Of a stdout, stderr or pty frame. Throws when the guest lies: a gap is worse than an end. */
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
