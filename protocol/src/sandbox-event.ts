/** What became of a sandbox, and why: one event for each change of its status. Kept until 30 days after its end. */
import { type Static, Type } from 'typebox'
import { Timestamp } from './ids.ts'
import { SandboxStatus } from './sandbox.ts'

/** Who caused it: a request, the sandbox itself (self-signal), its idle limit, the service, or one who runs it. */
export const EVENT_ACTORS = ['user', 'sandbox', 'auto-pause', 'system', 'operator'] as const
export type EventActor = (typeof EVENT_ACTORS)[number]
export const EventActor = Type.Enum(EVENT_ACTORS)

export const EVENTS_KEPT_DAYS = 30

export const SandboxEvent = Type.Object({
  at: Timestamp,
  actor: EventActor,
  from: SandboxStatus,
  to: SandboxStatus,
  reason: Type.Optional(Type.String()),
  duration_ms: Type.Number({ description: 'How long it was in `from`: of an operation, how long it took.' }),
})
export type SandboxEvent = Static<typeof SandboxEvent>
