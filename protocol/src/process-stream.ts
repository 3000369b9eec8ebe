/**
 * The output stream of a process: the events after `after` that the journal still holds, then new ones, then `exit` and
 * the end of the stream. `seq` starts at 1 and increases by exactly 1 over the data lines of all output streams.
 */
import { type Static, Type } from 'typebox'

/** Output retained per process; the oldest events are dropped first. */
export const PROCESS_JOURNAL_MAX_BYTES = 1024 * 1024
/** Output retained for all processes of a sandbox together. */
export const PROCESS_JOURNALS_MAX_BYTES = 32 * 1024 * 1024
/** Size of one event before base64 encoding. */
export const PROCESS_EVENT_MAX_BYTES = 32 * 1024
/** Sent when there is no output; clients give up after 5 s of silence. */
export const PROCESS_HEARTBEAT_MS = 3_000
/** How long output is awaited after the leader has exited, when descendants still hold its pipes open. */
export const PROCESS_DRAIN_MAX_MS = 2_000

export const PROCESS_STREAMS = ['stdout', 'stderr', 'pty'] as const
export type ProcessStream = (typeof PROCESS_STREAMS)[number]

export const ProcessConnectQuery = Type.Object({
  after: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: Number.MAX_SAFE_INTEGER,
      description: 'Return only events after this number. Defaults to 0: all that are still available.',
    }),
  ),
})
export type ProcessConnectQuery = Static<typeof ProcessConnectQuery>

export const ProcessDataFrame = Type.Object({
  type: Type.Literal('data'),
  seq: Type.Integer({ minimum: 1 }),
  stream: Type.Enum(PROCESS_STREAMS),
  data_base64: Type.String({ description: 'Standard base64 with padding.' }),
})
export type ProcessDataFrame = Static<typeof ProcessDataFrame>

/** Either `exit_code` or `signal`, never both and never null. */
export const ProcessExitFrame = Type.Union([
  Type.Object({ type: Type.Literal('exit'), exit_code: Type.Integer() }),
  Type.Object({ type: Type.Literal('exit'), signal: Type.String({ pattern: '^SIG[A-Z0-9+-]+$' }) }),
])
export type ProcessExitFrame = Static<typeof ProcessExitFrame>

export const ProcessErrorFrame = Type.Object({
  type: Type.Literal('error'),
  error: Type.String(),
  oldest_available_seq: Type.Optional(Type.Integer({ description: 'Connect again from here.' })),
})
export type ProcessErrorFrame = Static<typeof ProcessErrorFrame>

export const ProcessFrame = Type.Union([
  ProcessDataFrame,
  ProcessExitFrame,
  Type.Object({ type: Type.Literal('heartbeat') }),
  ProcessErrorFrame,
])
export type ProcessFrame = Static<typeof ProcessFrame>

const OFFSET_EXPIRED = 'output offset expired'

/** For a connected reader that fell behind the journal. It is the last line of the stream. */
export const offsetExpiredFrame = (oldestSeq: number): ProcessErrorFrame => ({
  type: 'error',
  error: OFFSET_EXPIRED,
  oldest_available_seq: oldestSeq,
})

/** Data of the 410 for a request for events that are gone. The number is a string, as every value inside `fail`. */
export const offsetExpiredFail = (oldestSeq: number) => ({
  message: OFFSET_EXPIRED,
  code: 'output_offset_expired' as const,
  oldest_available_seq: String(oldestSeq),
})
