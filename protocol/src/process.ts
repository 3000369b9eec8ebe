/** Managed processes: plain ones with pipes, and PTYs (docs/api.md#processes). */
import { type Static, Type } from 'typebox'
import { decodeBase64 } from './base64.ts'
import { Envs } from './envs.ts'
import { ProcessId, Timestamp } from './ids.ts'
import { optionalNull } from './optional-null.ts'

export const PROCESS_KINDS = ['process', 'pty'] as const
export type ProcessKind = (typeof PROCESS_KINDS)[number]

export const PROCESS_STATES = ['starting', 'running', 'terminating', 'exited', 'failed'] as const
export type ProcessState = (typeof PROCESS_STATES)[number]
export const ProcessState = Type.Enum(PROCESS_STATES)

type Move = { from: readonly ProcessState[]; to: ProcessState }

/**
 * Allowed transitions of a process. `exited` describes the leader only: descendants can still be running, and a DELETE
 * that ends them changes `tree_exited`, not the state.
 */
export const PROCESS_MOVES = {
  started: { from: ['starting'], to: 'running' },
  startFailed: { from: ['starting'], to: 'failed' },
  /** By DELETE only. A signal that the caller sends leaves the process `running` until it exits. */
  terminate: { from: ['running'], to: 'terminating' },
  exit: { from: ['running', 'terminating'], to: 'exited' },
  /** The guest agent no longer has a record of it, so its exit status is unknown. */
  lose: { from: ['running', 'terminating'], to: 'failed' },
} as const satisfies Record<string, Move>
export type ProcessMove = keyof typeof PROCESS_MOVES

export function processCan(move: ProcessMove, state: ProcessState): boolean {
  return (PROCESS_MOVES[move].from as readonly ProcessState[]).includes(state)
}

export const isProcessEnded = (state: ProcessState): boolean => state === 'exited' || state === 'failed'

/** Signals that a caller can send. Other signals can end a process too, so a view may name more. */
export const PROCESS_SIGNALS = [
  'SIGHUP',
  'SIGINT',
  'SIGQUIT',
  'SIGKILL',
  'SIGTERM',
  'SIGUSR1',
  'SIGUSR2',
  'SIGWINCH',
] as const
export type ProcessSignal = (typeof PROCESS_SIGNALS)[number]

/** Processes that have not ended. The next start gets a 429. */
export const PROCESSES_LIVE_MAX = 64
/** Includes ended processes; the oldest of them is dropped first. */
export const PROCESS_RECORDS_MAX = 256
export const PROCESS_INPUT_MAX_BYTES = 256 * 1024
export const PROCESS_WAIT_MAX_MS = 30_000
export const PROCESS_GRACE_DEFAULT_MS = 1_000
export const PROCESS_GRACE_MAX_MS = 60_000
export const PTY_ROWS_DEFAULT = 24
export const PTY_COLS_DEFAULT = 80
/** The kernel stores each dimension of a terminal in 16 bits. */
const PTY_DIMENSION_MAX = 65_535

export const ProcessParams = Type.Object({
  id: Type.String({ description: 'Sandbox id' }),
  process_id: Type.String({ description: 'Process id' }),
})
export type ProcessParams = Static<typeof ProcessParams>

const PtyDimension = Type.Integer({ minimum: 0, maximum: PTY_DIMENSION_MAX })

export const ProcessCreateBody = Type.Object({
  cmd: optionalNull(
    Type.String({
      description:
        'Program to run, without a shell. Required unless `pty` is given; a PTY without it runs a login shell.',
    }),
  ),
  args: optionalNull(Type.Array(Type.String())),
  cwd: optionalNull(Type.String({ description: 'Working directory. It must exist.' })),
  env: optionalNull(Envs),
  pty: optionalNull(
    Type.Object(
      { rows: optionalNull(PtyDimension), cols: optionalNull(PtyDimension) },
      { description: 'Run the process in a PTY of this size. Rows default to 24, columns to 80.' },
    ),
  ),
})
export type ProcessCreateBody = Static<typeof ProcessCreateBody>

/** Error text for the field `cmd`, or undefined if it is valid. */
export function checkProcessCommand(body: ProcessCreateBody): string | undefined {
  return body.cmd || body.pty ? undefined : 'is required unless pty is given'
}

export const ProcessView = Type.Object({
  process_id: ProcessId,
  kind: Type.Enum(PROCESS_KINDS),
  pid: Type.Integer({ description: 'Process id inside the sandbox; 0 if the process could not start.' }),
  state: ProcessState,
  leader_exited: Type.Boolean({ description: 'The process itself has ended.' }),
  tree_exited: Type.Boolean({ description: 'The process and all its descendants have ended.' }),
  created_at: Timestamp,
  finished_at: Type.Union([Timestamp, Type.Null()]),
  exit_code: Type.Union([Type.Integer(), Type.Null()], {
    description: 'Null while the process runs and when a signal ended it.',
  }),
  signal: Type.Optional(Type.String({ pattern: '^SIG[A-Z0-9+-]+$', description: 'Signal that ended the process.' })),
  output: Type.Object({
    oldest_seq: Type.Integer({ description: 'Number of the oldest output event that is still available.' }),
    newest_seq: Type.Integer({ description: 'Number of the newest output event.' }),
    bytes: Type.Integer({ description: 'Size of the output that is still available.' }),
  }),
  cmd: Type.String(),
  args: Type.Array(Type.String()),
  cwd: Type.String(),
  foreground: Type.Optional(
    Type.Object(
      { pid: Type.Integer(), cmd: Type.String(), args: Type.Array(Type.String()) },
      { description: 'Leader of the foreground process group. PTY only.' },
    ),
  ),
})
export type ProcessView = Static<typeof ProcessView>

export const ProcessListView = Type.Object({ processes: Type.Array(ProcessView) })
export type ProcessListView = Static<typeof ProcessListView>

export const ProcessInputBody = Type.Object({
  data_base64: Type.String({
    description: 'Bytes for the standard input, at most 256 KiB after decoding. Can be empty.',
  }),
})
export type ProcessInputBody = Static<typeof ProcessInputBody>

/** Error text for the field `data_base64`, or undefined if it is valid. */
export function checkProcessInput(dataBase64: string): string | undefined {
  const bytes = decodeBase64(dataBase64)
  if (!bytes) return 'is not base64'
  if (bytes.length > PROCESS_INPUT_MAX_BYTES) return `must not decode to more than ${PROCESS_INPUT_MAX_BYTES} bytes`
  return undefined
}

export const ProcessInputView = Type.Object({
  input_seq: Type.Integer({ description: 'Incremented by each write that is not empty.' }),
})
export type ProcessInputView = Static<typeof ProcessInputView>

const ResizeDimension = Type.Integer({ minimum: 1, maximum: PTY_DIMENSION_MAX })
export const ProcessResizeBody = Type.Object({ rows: ResizeDimension, cols: ResizeDimension })
export type ProcessResizeBody = Static<typeof ProcessResizeBody>

export const ProcessSignalBody = Type.Object({ signal: Type.Enum(PROCESS_SIGNALS) })
export type ProcessSignalBody = Static<typeof ProcessSignalBody>

export const ProcessWaitQuery = Type.Object({
  scope: Type.Optional(
    Type.Enum(['leader', 'tree'], { description: 'Wait for the process itself or for all its descendants too.' }),
  ),
  timeout_ms: Type.Optional(
    Type.Integer({ minimum: 0, description: 'Longest wait. Defaults to 30000; larger values are reduced to it.' }),
  ),
})
export type ProcessWaitQuery = Static<typeof ProcessWaitQuery>

export const processWaitMs = (query: ProcessWaitQuery): number =>
  Math.min(query.timeout_ms || PROCESS_WAIT_MAX_MS, PROCESS_WAIT_MAX_MS)

export const ProcessDeleteQuery = Type.Object({
  grace_ms: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: PROCESS_GRACE_MAX_MS,
      description: 'Time between SIGTERM and SIGKILL. Defaults to 1000; 0 sends SIGKILL at once.',
    }),
  ),
})
export type ProcessDeleteQuery = Static<typeof ProcessDeleteQuery>
