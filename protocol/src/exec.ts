/** Exec and files (spec 4.3). */
import { type Static, Type } from 'typebox'

export const EXEC_OUTPUT_MAX_BYTES = 1024 * 1024
export const EXEC_TRUNCATED_NOTICE = '[output truncated: exceeded 1 MiB]'
export const EXEC_CHUNK_MAX_BYTES = 64 * 1024
/** A dead client must be noticed within about 5 s (spec 4.3). */
export const EXEC_HEARTBEAT_MS = 5_000
export const FILE_MAX_BYTES = 10 * 1024 ** 3

export const ExecQuery = Type.Object({ stream: Type.Optional(Type.Boolean()) })

export const ExecBody = Type.Object({
  cmd: Type.String({ minLength: 1, description: 'Absolute, or found on PATH.' }),
  args: Type.Optional(Type.Union([Type.Array(Type.String()), Type.Null()])),
  stdin: Type.Optional(Type.Union([Type.String(), Type.Null()])),
  env: Type.Optional(
    Type.Union([Type.Record(Type.String(), Type.String()), Type.Null()], {
      description: 'Only names declared in the envs of the sandbox.',
    }),
  ),
  stream: Type.Optional(Type.Union([Type.Boolean(), Type.Null()])),
})
export type ExecBody = Static<typeof ExecBody>

export const ExecResult = Type.Object({
  result: Type.Object({
    stdout: Type.String(),
    stderr: Type.String(),
    exit_code: Type.Integer({ description: '127 not found, 126 not executable, 128+n after signal n.' }),
    error: Type.Optional(Type.String({ description: 'Only when the command could not start.' })),
  }),
  exec_ms: Type.Number(),
})
export type ExecResult = Static<typeof ExecResult>

/** Exactly one field a line; the last line is always `exit_code`. */
export const ExecFrame = Type.Union([
  Type.Object({ stdout: Type.String() }),
  Type.Object({ stderr: Type.String() }),
  Type.Object({ hb: Type.Literal(true) }),
  Type.Object({ error: Type.String() }),
  Type.Object({ exit_code: Type.Integer() }),
])
export type ExecFrame = Static<typeof ExecFrame>

export const FileQuery = Type.Object({ path: Type.String({ description: 'Absolute; `..` is refused.' }) })
