/** Exec (docs/api.md#exec) and files (docs/api.md#files). */
import { type Static, Type } from 'typebox'

export const EXEC_OUTPUT_MAX_BYTES = 1024 * 1024
export const EXEC_TRUNCATED_NOTICE = '[output truncated: exceeded 1 MiB]'
export const EXEC_CHUNK_MAX_BYTES = 64 * 1024
/** A client that is gone must be noticed within about 5 s. */
export const EXEC_HEARTBEAT_MS = 5_000
export const FILE_MAX_BYTES = 10 * 1024 ** 3

const STREAM_DESCRIPTION = 'Stream the output as NDJSON while the command runs.'

export const ExecQuery = Type.Object({
  stream: Type.Optional(Type.Boolean({ description: STREAM_DESCRIPTION })),
})

export const ExecBody = Type.Object({
  cmd: Type.String({
    minLength: 1,
    description: 'Absolute path, or a name that is looked up on PATH. No shell is involved.',
  }),
  args: Type.Optional(Type.Union([Type.Array(Type.String()), Type.Null()])),
  stdin: Type.Optional(Type.Union([Type.String(), Type.Null()], { description: 'Text for the standard input.' })),
  env: Type.Optional(
    Type.Union([Type.Record(Type.String(), Type.String()), Type.Null()], {
      description: 'Overrides for variables that the sandbox declares in its envs. Other names are refused.',
    }),
  ),
  stream: Type.Optional(Type.Union([Type.Boolean(), Type.Null()], { description: STREAM_DESCRIPTION })),
})
export type ExecBody = Static<typeof ExecBody>

export const ExecResult = Type.Object({
  result: Type.Object({
    stdout: Type.String(),
    stderr: Type.String(),
    exit_code: Type.Integer({
      description:
        'Exit code of the command; 127 if it was not found, 126 if it is not executable, 128+n if signal n ended it.',
    }),
    error: Type.Optional(Type.String({ description: 'Why the command could not start. Absent otherwise.' })),
  }),
  exec_ms: Type.Number(),
})
export type ExecResult = Static<typeof ExecResult>

/** Each line has exactly one field; the last line is always `exit_code`. */
export const ExecFrame = Type.Union([
  Type.Object({ stdout: Type.String() }),
  Type.Object({ stderr: Type.String() }),
  Type.Object({ hb: Type.Literal(true) }),
  Type.Object({ error: Type.String() }),
  Type.Object({ exit_code: Type.Integer() }),
])
export type ExecFrame = Static<typeof ExecFrame>

export const FileQuery = Type.Object({
  path: Type.String({ description: 'Absolute path in the sandbox, without `..`.' }),
})
