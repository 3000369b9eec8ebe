/**
 * POST /exec of the guest agent. Both bodies consist of frames (guest-frames.ts).
 *
 *   request   one `command` (JSON), then `stdin` frames if the command has `stdin: true`. The end of the body is the end
 *             of stdin. Without `stdin` the program reads /dev/null.
 *   response  200; either a single `error`, or `started`, any number of `stdout` and `stderr`, and finally `exit`.
 *             `exit` is sent when the program was reaped and both pipes are at their end.
 *
 * Resetting the stream kills the program and its session immediately. A response that ends without `error` or `exit` was
 * interrupted and there is no exit code. Output payloads have at most GUEST_EXEC_PIECE_MAX_BYTES.
 */
import { type Static, Type } from 'typebox'
import { createGuestFrameReader, type GuestFrame, guestFrame, guestFrameHeader } from './guest-frames.ts'

export const GuestExecCommand = Type.Object({
  cmd: Type.String({ minLength: 1, description: 'Path, or a name that is looked up on PATH.' }),
  args: Type.Optional(Type.Array(Type.String())),
  env: Type.Optional(
    Type.Record(Type.String(), Type.String(), { description: 'Added to the variables of the sandbox.' }),
  ),
  cwd: Type.Optional(Type.String({ description: 'Defaults to /root, or to / if that does not exist.' })),
  stdin: Type.Optional(Type.Boolean({ description: 'Whether stdin frames follow.' })),
  timeout_ms: Type.Optional(Type.Integer({ minimum: 0, description: 'After this time the whole session is killed.' })),
})
export type GuestExecCommand = Static<typeof GuestExecCommand>

export const GuestExecStarted = Type.Object({ pid: Type.Integer() })
export type GuestExecStarted = Static<typeof GuestExecStarted>

export const GuestExecError = Type.Object({
  kind: Type.Enum(['not_found', 'not_executable', 'other'], {
    description: 'Correspond to the exit codes 127, 126 and 126 of a shell.',
  }),
  message: Type.String(),
})
export type GuestExecError = Static<typeof GuestExecError>

/** Contains exactly one of `code` and `signal`. */
export const GuestExecExit = Type.Object({
  code: Type.Optional(Type.Integer({ minimum: 0, maximum: 255 })),
  signal: Type.Optional(Type.Integer({ minimum: 1, maximum: 64 })),
  timed_out: Type.Boolean(),
})
export type GuestExecExit = Static<typeof GuestExecExit>

export const GUEST_EXEC_FRAME = { stdin: 0, stdout: 1, stderr: 2, command: 3, started: 4, error: 5, exit: 6 } as const
export type GuestExecFrameType = keyof typeof GUEST_EXEC_FRAME
export type GuestExecFrame = GuestFrame<GuestExecFrameType>

export const GUEST_EXEC_PIECE_MAX_BYTES = 32 * 1024
export const GUEST_EXEC_COMMAND_MAX_BYTES = 1024 * 1024

/** The header of a frame whose payload is sent separately. */
export const guestExecHeader = (type: GuestExecFrameType, payloadBytes: number): Uint8Array =>
  guestFrameHeader(GUEST_EXEC_FRAME[type], payloadBytes)

export const guestExecFrame = (type: GuestExecFrameType, payload: Uint8Array): Uint8Array =>
  guestFrame(GUEST_EXEC_FRAME[type], payload)

export const createGuestExecReader = () => createGuestFrameReader(GUEST_EXEC_FRAME, GUEST_EXEC_PIECE_MAX_BYTES)
