/** What the host observed of a sandbox's outbound traffic: refused attempts and reached destinations. */
import { type Static, Type } from 'typebox'
import { SandboxId, Timestamp } from './ids.ts'

/** Stable reasons why an attempt was refused, with their meaning. */
export const EGRESS_REFUSALS = {
  not_allowed: 'no rule allows it',
  private_address: 'the address is private, link-local or reserved',
  not_a_peer: 'the address is a sandbox with which it shares no network',
  no_server_name: 'the connection does not name its host',
  bad_request: 'the request is not valid HTTP or TLS',
  other_host: 'a later request on the connection names another host',
  name_not_found: 'the name has no address',
  too_many: 'too many connections at once',
} as const
export type EgressRefusal = keyof typeof EGRESS_REFUSALS

/** Attempts that differ only in time are one entry. */
export const EgressDecision = Type.Object({
  at: Type.String({ ...Timestamp, description: 'Time of the last attempt.' }),
  via: Type.Enum(['packet', 'dns', 'tls', 'http'], {
    description: 'Where the attempt was refused: by packet filter, DNS resolver, or TLS and HTTP proxy.',
  }),
  destination: Type.String({ description: 'Address, or host name if the attempt contained one; empty if unknown.' }),
  protocol: Type.String({ description: '`tcp`, `udp`, `icmp` or a protocol number.' }),
  port: Type.Optional(Type.Integer()),
  reason: Type.Enum(Object.keys(EGRESS_REFUSALS) as EgressRefusal[]),
  count: Type.Integer({ description: 'Number of attempts; of packets if `via` is packet.' }),
})
export type EgressDecision = Static<typeof EgressDecision>

/** A destination that was reached within the last day. */
export const EgressFlow = Type.Object({
  destination: Type.String({
    description: 'Host name if the connection contained one and the rules name hosts, otherwise the address.',
  }),
  protocol: Type.String(),
  port: Type.Integer(),
  count: Type.Integer({ description: 'Number of connections; of packets for UDP.' }),
})
export type EgressFlow = Static<typeof EgressFlow>

/** Available while the sandbox runs. A pause keeps the decisions of the last day. */
export const EgressDecisionsView = Type.Object({ id: SandboxId, decisions: Type.Array(EgressDecision) })
export const EgressFlowsView = Type.Object({ id: SandboxId, flows: Type.Array(EgressFlow) })
