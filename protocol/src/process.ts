/** Managed processes: plain ones on pipes, and PTYs (spec 2.11, 3.2, 4.4; wire 6). */
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
 * What may become what. `exited` speaks of the leader alone: descendants may live on, and a DELETE that only cleans
 * them up changes `tree_exited`, not the state.
 */
export const PROCESS_MOVES = {
  started: { from: ['starting'], to: 'running' },
  startFailed: { from: ['starting'], to: 'failed' },
  /** By DELETE only: a signal that the caller sends leaves the process running until it is gone. */
  terminate: { from: ['running'], to: 'terminating' },
  exit: { from: ['running', 'terminating'], to: 'exited' },
  /** The guest's agent no longer knows it: how it ended cannot be told. */
  lose: { from: ['running', 'terminating'], to: 'failed' },
} as const satisfies Record<string, Move>
export type ProcessMove = keyof typeof PROCESS_MOVES

export function processCan(move: ProcessMove, state: ProcessState): boolean {
  return (PROCESS_MOVES[move].from as readonly ProcessState[]).includes(state)
}

export const isProcessEnded = (state: ProcessState): boolean => state === 'exited' || state === 'failed'

/** What a caller may send; a process may end by others too, so a view can name more. */
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

/** 429 beyond; counts what is not exited or failed. */
export const PROCESSES_LIVE_MAX = 64
/** Ended ones included; the oldest ended one is dropped first. */
export const PROCESS_RECORDS_MAX = 256
export const PROCESS_INPUT_MAX_BYTES = 256 * 1024
export const PROCESS_WAIT_MAX_MS = 30_000
export const PROCESS_GRACE_DEFAULT_MS = 1_000
export const PROCESS_GRACE_MAX_MS = 60_000
export const PTY_ROWS_DEFAULT = 24
export const PTY_COLS_DEFAULT = 80
/** The kernel keeps each side of a terminal in 16 bits. */
const PTY_SIDE_MAX = 65_535

export const ProcessParams = Type.Object({
  id: Type.String({ description: 'Sandbox id' }),
  process_id: Type.String({ description: 'Process id' }),
})
export type ProcessParams = Static<typeof ProcessParams>

const PtySide = Type.Integer({ minimum: 0, maximum: PTY_SIDE_MAX })

export const ProcessCreateBody = Type.Object({
  cmd: optionalNull(
    Type.String({ description: 'Run directly, no shell parses it. A PTY without one is a login shell.' }),
  ),
  args: optionalNull(Type.Array(Type.String())),
  cwd: optionalNull(Type.String({ description: 'Must exist.' })),
  env: optionalNull(Envs),
  pty: optionalNull(
    Type.Object(
      { rows: optionalNull(PtySide), cols: optionalNull(PtySide) },
      { description: 'Makes it a PTY; 0 or absent is 24 rows, 80 columns.' },
    ),
  ),
})
export type ProcessCreateBody = Static<typeof ProcessCreateBody>

/** For the field `cmd`. */
export function checkProcessCommand(body: ProcessCreateBody): string | undefined {
  return body.cmd || body.pty ? undefined : 'is required unless pty is given'
}

export const ProcessView = Type.Object({
  process_id: ProcessId,
  kind: Type.Enum(PROCESS_KINDS),
  pid: Type.Integer({ description: 'Inside the sandbox; 0 if it could not start.' }),
  state: ProcessState,
  leader_exited: Type.Boolean(),
  tree_exited: Type.Boolean({ description: 'Everything it started has ended too.' }),
  created_at: Timestamp,
  finished_at: Type.Union([Timestamp, Type.Null()]),
  exit_code: Type.Union([Type.Integer(), Type.Null()], { description: 'Null while running and after a signal.' }),
  signal: Type.Optional(Type.String({ pattern: '^SIG[A-Z0-9+-]+$', description: 'The signal that ended it.' })),
  output: Type.Object({
    oldest_seq: Type.Integer({ description: 'Oldest output event still kept.' }),
    newest_seq: Type.Integer(),
    bytes: Type.Integer({ description: 'Output kept.' }),
  }),
  cmd: Type.String(),
  args: Type.Array(Type.String()),
  cwd: Type.String(),
  foreground: Type.Optional(
    Type.Object(
      { pid: Type.Integer(), cmd: Type.String(), args: Type.Array(Type.String()) },
      { description: 'PTY only: leader of the group that has the terminal.' },
    ),
  ),
})
export type ProcessView = Static<typeof ProcessView>

export const ProcessListView = Type.Object({ processes: Type.Array(ProcessView) })
export type ProcessListView = Static<typeof ProcessListView>

export const ProcessInputBody = Type.Object({
  data_base64: Type.String({ description: 'At most 256 KiB decoded; may be empty.' }),
})
export type ProcessInputBody = Static<typeof ProcessInputBody>

/** For the field `data_base64`. */
export function checkProcessInput(dataBase64: string): string | undefined {
  const bytes = decodeBase64(dataBase64)
  if (!bytes) return 'is not base64'
  if (bytes.length > PROCESS_INPUT_MAX_BYTES) return `must not decode to more than ${PROCESS_INPUT_MAX_BYTES} bytes`
  return undefined
}

export const ProcessInputView = Type.Object({
  input_seq: Type.Integer({ description: 'Rises with each write that is not empty.' }),
})
export type ProcessInputView = Static<typeof ProcessInputView>

const ResizeSide = Type.Integer({ minimum: 1, maximum: PTY_SIDE_MAX })
export const ProcessResizeBody = Type.Object({ rows: ResizeSide, cols: ResizeSide })
export type ProcessResizeBody = Static<typeof ProcessResizeBody>

export const ProcessSignalBody = Type.Object({ signal: Type.Enum(PROCESS_SIGNALS) })
export type ProcessSignalBody = Static<typeof ProcessSignalBody>

/** A longer wait is clamped, not refused (wire 6). */
export const ProcessWaitQuery = Type.Object({
  scope: Type.Optional(Type.Enum(['leader', 'tree'])),
  timeout_ms: Type.Optional(Type.Integer({ minimum: 0, description: 'Absent, 0 or over 30000: 30000.' })),
})
export type ProcessWaitQuery = Static<typeof ProcessWaitQuery>

export const processWaitMs = (query: ProcessWaitQuery): number =>
  Math.min(query.timeout_ms || PROCESS_WAIT_MAX_MS, PROCESS_WAIT_MAX_MS)

export const ProcessDeleteQuery = Type.Object({
  grace_ms: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: PROCESS_GRACE_MAX_MS,
      description: 'From SIGTERM to SIGKILL; 0 kills at once, absent is 1000.',
    }),
  ),
})
export type ProcessDeleteQuery = Static<typeof ProcessDeleteQuery>
