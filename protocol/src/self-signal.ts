/**
 * What a sandbox says about itself from inside: pause me, delete me (spec 4.15; wire 17). Over HTTP on loopback, or as
 * a line in a named pipe. All of it is the guest's word and is cleaned before it is kept.
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

/** With 202 and no envelope. */
export const SelfSignalAnswer = Type.Object({ status: Type.Literal('accepted'), action: SelfAction })
export type SelfSignalAnswer = Static<typeof SelfSignalAnswer>

/** Undefined when nothing is left. Cut by characters, so that none is cut in half. */
export function cleanSelfReason(reason: string | null | undefined): string | undefined {
  if (!reason) return undefined
  const text = reason
    .toWellFormed()
    .replace(/\p{Cc}/gu, '')
    .trim()
  return [...text].slice(0, SELF_REASON_MAX_CHARACTERS).join('') || undefined
}

export const SELF_PIPE_VERBS = {
  park: 'pause',
  pause: 'pause',
  retire: 'delete',
  delete: 'delete',
  rm: 'delete',
  destroy: 'delete',
} as const satisfies Record<string, SelfAction>

/** Undefined for a comment, an empty line and a verb nobody knows: the pipe cannot answer, so they are all ignored. */
export function parseSelfPipeLine(line: string): SelfAction | undefined {
  const verb = line.trim()
  return Object.hasOwn(SELF_PIPE_VERBS, verb) ? SELF_PIPE_VERBS[verb as keyof typeof SELF_PIPE_VERBS] : undefined
}
