/** The history of a sandbox: one event for each change of its status, retained for 30 days after its deletion. */
import { type Static, Type } from 'typebox'
import { Timestamp } from './ids.ts'
import { SandboxStatus } from './sandbox.ts'

/** What caused the change: a request, the sandbox (self-signal), auto-pause, the service, or an operator. */
export const EVENT_ACTORS = ['user', 'sandbox', 'auto-pause', 'system', 'operator'] as const
export type EventActor = (typeof EVENT_ACTORS)[number]
export const EventActor = Type.Enum(EVENT_ACTORS)

export const EVENTS_RETENTION_DAYS = 30

export const SandboxEvent = Type.Object({
  at: Timestamp,
  actor: EventActor,
  from: SandboxStatus,
  to: SandboxStatus,
  reason: Type.Optional(Type.String()),
  duration_ms: Type.Number({ description: 'How long the sandbox was in the status `from`.' }),
})
export type SandboxEvent = Static<typeof SandboxEvent>
