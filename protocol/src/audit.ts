/** The audit log: one entry for each call that changes something, and for each command of an operator. */
import { type Static, Type } from 'typebox'
import { PageQuery } from './envelope.ts'
import { Timestamp } from './ids.ts'

export const AUDIT_RETENTION_DEFAULT_DAYS = 90

/** Who acted: a user with an own credential, the access token of a sandbox, or an operator on the machine. */
export const AUDIT_ACTOR_KINDS = ['user', 'token', 'operator'] as const
export type AuditActorKind = (typeof AUDIT_ACTOR_KINDS)[number]

/** `fail` for 4xx, `error` for 5xx, as in the envelope of responses. */
export const AUDIT_OUTCOMES = ['success', 'fail', 'error'] as const
export type AuditOutcome = (typeof AUDIT_OUTCOMES)[number]

export const AuditEntry = Type.Object({
  id: Type.String({ description: '`aud_<ulid>`. The `auditLogId` of webhook deliveries names it.' }),
  at: Timestamp,
  actor_kind: Type.Enum(AUDIT_ACTOR_KINDS),
  actor: Type.String({ description: 'Id of the user, or `operator`.' }),
  credential: Type.Optional(Type.String({ description: 'A hint at the credential, never the credential.' })),
  action: Type.String({ description: 'Such as `sandbox.create`.' }),
  target: Type.Optional(Type.String({ description: 'Id of the resource, or its name if the request named it so.' })),
  outcome: Type.Enum(AUDIT_OUTCOMES),
  status: Type.Optional(Type.Integer({ description: 'HTTP status of the response.' })),
  code: Type.Optional(Type.String({ description: 'Error code of a failed call.' })),
  request_id: Type.Optional(Type.String({ description: '`X-Request-Id` of the response.' })),
})
export type AuditEntry = Static<typeof AuditEntry>

export const AuditQuery = Type.Object({
  ...PageQuery.properties,
  action: Type.Optional(Type.String({ description: 'Only entries with this action.' })),
  target: Type.Optional(Type.String({ description: 'Only entries about this resource, such as a sandbox id.' })),
})
export type AuditQuery = Static<typeof AuditQuery>
