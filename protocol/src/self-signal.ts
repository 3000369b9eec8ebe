/**
 * Self-signals: programs inside a sandbox request that it is paused or deleted, over HTTP on loopback or by a line in a
 * named pipe. The input comes from the guest and is sanitized before it is stored.
 */
import { type Static, Type } from 'typebox'

export const SELF_SIGNAL_PORT = 1029
export const SELF_SIGNAL_PIPE = '/run/self'
export const SELF_REASON_MAX_CHARACTERS = 128

export const SELF_ACTIONS = ['pause', 'delete'] as const
export type SelfAction = (typeof SELF_ACTIONS)[number]
export const SelfAction = Type.Enum(SELF_ACTIONS)

export const SelfSignalQuery = Type.Object({ reason: Type.Optional(Type.String()) })
export type SelfSignalQuery = Static<typeof SelfSignalQuery>

/** Sent with status 202 and without an envelope. */
export const SelfSignalResponse = Type.Object({ status: Type.Literal('accepted'), action: SelfAction })
export type SelfSignalResponse = Static<typeof SelfSignalResponse>

/** Undefined when nothing remains. Truncated by characters, so that none is split. */
export function sanitizeSelfReason(reason: string | null | undefined): string | undefined {
  if (!reason) return undefined
  const text = reason
    .toWellFormed()
    .replace(/\p{Cc}/gu, '')
    .trim()
  return [...text].slice(0, SELF_REASON_MAX_CHARACTERS).join('') || undefined
}

/** The verbs of the pipe are part of the API: `park` and `retire` are alternative names for pause and delete. */
export const SELF_PIPE_VERBS = {
  park: 'pause',
  pause: 'pause',
  retire: 'delete',
  delete: 'delete',
  rm: 'delete',
  destroy: 'delete',
} as const satisfies Record<string, SelfAction>

/** Undefined for a comment, an empty line and an unknown verb. A pipe has no response, so all of them are ignored. */
export function parseSelfPipeLine(line: string): SelfAction | undefined {
  const verb = line.trim()
  return Object.hasOwn(SELF_PIPE_VERBS, verb) ? SELF_PIPE_VERBS[verb as keyof typeof SELF_PIPE_VERBS] : undefined
}
