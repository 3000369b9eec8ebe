/**
 * The connect stream of a process (spec 4.4, wire 6): what the journal still holds after `after`, then what comes, then
 * `exit` and the end of the stream. `seq` starts at 1 and rises by exactly 1 over the data lines of both streams.
 */
import { type Static, Type } from 'typebox'

/** Kept per process; the oldest events go first. */
export const PROCESS_JOURNAL_MAX_BYTES = 1024 * 1024
/** Kept for all processes of one sandbox together. */
export const PROCESS_JOURNALS_MAX_BYTES = 32 * 1024 * 1024
/** Of one event, before base64. */
export const PROCESS_EVENT_MAX_BYTES = 32 * 1024
/** Of silence: a client gives up reading after 5 s. */
export const PROCESS_HEARTBEAT_MS = 3_000
/** After the end of the leader, when descendants hold its pipes open and output may still come. */
export const PROCESS_DRAIN_MAX_MS = 2_000

export const PROCESS_STREAMS = ['stdout', 'stderr', 'pty'] as const
export type ProcessStream = (typeof PROCESS_STREAMS)[number]

export const ProcessConnectQuery = Type.Object({
  after: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: Number.MAX_SAFE_INTEGER,
      description: 'Only events after this one; 0 or absent: all that are kept.',
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

/** One of the two, never both and never null. */
export const ProcessExitFrame = Type.Union([
  Type.Object({ type: Type.Literal('exit'), exit_code: Type.Integer() }),
  Type.Object({ type: Type.Literal('exit'), signal: Type.String({ pattern: '^SIG[A-Z0-9+-]+$' }) }),
])
export type ProcessExitFrame = Static<typeof ProcessExitFrame>

export const ProcessErrorFrame = Type.Object({
  type: Type.Literal('error'),
  error: Type.String(),
  oldest_available_seq: Type.Optional(Type.Integer()),
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

/** To a reader that fell behind the journal while connected; the stream ends after it. */
export const offsetExpiredFrame = (oldestSeq: number): ProcessErrorFrame => ({
  type: 'error',
  error: OFFSET_EXPIRED,
  oldest_available_seq: oldestSeq,
})

/** Data of the 410 to a reader that asks for what is gone. The number is a string, as everything inside `fail`. */
export const offsetExpiredFail = (oldestSeq: number) => ({
  message: OFFSET_EXPIRED,
  code: 'output_offset_expired' as const,
  oldest_available_seq: String(oldestSeq),
})
