/**
 * POST /exec. Both bodies are frames: 1 byte type, 4 bytes big-endian payload length, payload (guest-frames.ts).
 *
 *   request   command (JSON, once), then stdin frames if the command said `stdin: true`; the end of the body is the
 *             end of stdin. Without `stdin` the program reads /dev/null.
 *   response  200; either `error` alone, or `started`, any number of `stdout` and `stderr`, and `exit` as the last.
 *             `exit` comes when the program was reaped and both pipes are at their end.
 *
 * Resetting the stream kills the program and its session at once. A response that ends without `error` or `exit` was
 * cut: there is no exit code. Payloads of output are at most GUEST_EXEC_PIECE_MAX_BYTES.
 */
import { type Static, Type } from 'typebox'
import { createGuestFrameReader, type GuestFrame, guestFrame, guestFrameHeader } from './guest-frames.ts'

export const GuestExecCommand = Type.Object({
  cmd: Type.String({ minLength: 1, description: 'A path, or a name found on the PATH of the environment.' }),
  args: Type.Optional(Type.Array(Type.String())),
  env: Type.Optional(Type.Record(Type.String(), Type.String(), { description: 'On top of the envs of the identity.' })),
  cwd: Type.Optional(Type.String({ description: '/root when absent, or / where there is no /root.' })),
  stdin: Type.Optional(Type.Boolean({ description: 'Whether stdin frames follow.' })),
  timeout_ms: Type.Optional(Type.Integer({ minimum: 0, description: 'Then the whole session is killed.' })),
})
export type GuestExecCommand = Static<typeof GuestExecCommand>

export const GuestExecStarted = Type.Object({ pid: Type.Integer() })
export type GuestExecStarted = Static<typeof GuestExecStarted>

export const GuestExecError = Type.Object({
  kind: Type.Enum(['not_found', 'not_executable', 'other'], {
    description: '127, 126 and 126 in the words of a shell.',
  }),
  message: Type.String(),
})
export type GuestExecError = Static<typeof GuestExecError>

/** Exactly one of `code` and `signal`. */
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

/** The header to send before a payload of this length. */
export const guestExecHeader = (type: GuestExecFrameType, payloadBytes: number): Uint8Array =>
  guestFrameHeader(GUEST_EXEC_FRAME[type], payloadBytes)

export const guestExecFrame = (type: GuestExecFrameType, payload: Uint8Array): Uint8Array =>
  guestFrame(GUEST_EXEC_FRAME[type], payload)

export const createGuestExecReader = () => createGuestFrameReader(GUEST_EXEC_FRAME, GUEST_EXEC_PIECE_MAX_BYTES)
