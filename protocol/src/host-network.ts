/**
 * The network of one sandbox, as the control plane tells it to the host that runs it, and what that host reports.
 *
 *   PUT /v1/vms/{id}/network    HostVmNetworkBody → HostVmNetworkApplied    of a running VM, live, in one transaction
 *   GET /v1/vms/{id}/network    → HostVmNetworkReport
 *
 * It is one whole object, never a change to one: asking twice does nothing twice, and a host that missed a change is
 * right again with the next. The same object goes with create and resume, where it is in force before the guest runs.
 *
 * Each object carries a `revision` that the control plane raises with every change for that sandbox. A host that has
 * seen a higher one leaves things as they are and says so: two changes that overtake each other on the way end as the
 * later one. (The fence orders operations; several changes of the network may share one.)
 *
 * Membership names addresses and nothing about hosts. Two sandboxes reach each other when each is a member in the
 * other's object, so leaving is done the moment one of the two hosts has heard of it.
 */
import { type Static, Type } from 'typebox'
import { BANDWIDTH_QUOTA_DEFAULT_BYTES, BANDWIDTH_UNMETERED } from './bandwidth.ts'
import { EgressRules } from './egress.ts'
import { NetworkId, ResourceName, SandboxId, Timestamp } from './ids.ts'
import { SandboxName } from './sandbox.ts'

const Ipv4 = Type.String({ pattern: '^\\d{1,3}(\\.\\d{1,3}){3}$' })
const Bytes = Type.Integer({ minimum: 0 })

/** The names are those of the sandboxes; whether the sandbox itself is among the members makes no difference. */
export const HostNetworkMember = Type.Object({ ip: Ipv4, name: SandboxName })
export type HostNetworkMember = Static<typeof HostNetworkMember>

export const HostVmNetwork = Type.Object({
  revision: Type.Integer({ minimum: 0 }),
  /** As the owner gave them, valid by parseEgressRules; empty is open. */
  egress: EgressRules,
  networks: Type.Array(
    Type.Object({
      id: NetworkId,
      /** Absent in what hosts were told before they needed it. */
      name: Type.Optional(ResourceName),
      members: Type.Array(HostNetworkMember),
    }),
  ),
  bandwidth: Type.Object({
    quota_bytes: Type.Integer({ minimum: BANDWIDTH_UNMETERED, description: '-1: unmetered.' }),
    /** Where counting goes on from when the VM gets its network; ignored for one that has it: the kernel knows better. */
    used_bytes: Bytes,
    ingress_bytes: Bytes,
  }),
})
export type HostVmNetwork = Static<typeof HostVmNetwork>

/** What a sandbox has whose owner asked for nothing. */
export const HOST_NETWORK_DEFAULT: HostVmNetwork = {
  revision: 0,
  egress: [],
  networks: [],
  bandwidth: { quota_bytes: BANDWIDTH_QUOTA_DEFAULT_BYTES, used_bytes: 0, ingress_bytes: 0 },
}

export const HostVmNetworkBody = Type.Object({ fence: Type.Integer({ minimum: 1 }), network: HostVmNetwork })
export type HostVmNetworkBody = Static<typeof HostVmNetworkBody>

/** `revision`: the one in force, which is higher than the one asked for when that came late. */
export const HostVmNetworkApplied = Type.Object({ revision: Type.Integer() })
export type HostVmNetworkApplied = Static<typeof HostVmNetworkApplied>

export const HostBandwidth = Type.Object({
  quota_bytes: Type.Integer({ description: '-1: unmetered.' }),
  used_bytes: Type.Integer({ description: 'Sent, since the sandbox was created.' }),
  ingress_bytes: Type.Integer({ description: 'Received.' }),
  capped: Type.Boolean({ description: 'What it sends is being dropped.' }),
})
export type HostBandwidth = Static<typeof HostBandwidth>

/** Why something did not pass, in words a client can count on. */
export const EGRESS_REFUSALS = {
  not_allowed: 'no rule allows it',
  private_address: 'the address is private, link-local or reserved',
  not_a_peer: 'the address is a sandbox with which it shares no network',
  no_server_name: 'the connection does not say which host it wants',
  bad_request: 'not HTTP or TLS that can be judged',
  other_host: 'a later request on the connection names another host',
  name_not_found: 'the name has no address',
  too_many: 'too many connections at once',
} as const
export type EgressRefusal = keyof typeof EGRESS_REFUSALS

/** Refused attempts that differ in nothing but time are one entry. */
export const EgressDecision = Type.Object({
  at: Type.String({ ...Timestamp, description: 'Of the last attempt.' }),
  via: Type.Enum(['packet', 'dns', 'tls', 'http'], { description: 'Where it was seen.' }),
  destination: Type.String({ description: 'An address, or a name where one was given; empty when none was.' }),
  protocol: Type.String({ description: 'tcp, udp, icmp, or a number.' }),
  port: Type.Optional(Type.Integer()),
  reason: Type.Enum(Object.keys(EGRESS_REFUSALS) as EgressRefusal[]),
  count: Type.Integer({ description: 'Attempts; of packets, packets.' }),
})
export type EgressDecision = Static<typeof EgressDecision>

/** A destination that was reached, within the last day. */
export const EgressFlow = Type.Object({
  destination: Type.String({
    description: 'The name where the connection gave one and rules name hosts, or an address.',
  }),
  protocol: Type.String(),
  port: Type.Integer(),
  count: Type.Integer({ description: 'Connections; of UDP, packets.' }),
})
export type EgressFlow = Static<typeof EgressFlow>

/** GET …/egress/decisions and …/egress/flows (ours). Of a running sandbox; decisions are gone when it pauses. */
export const EgressDecisionsView = Type.Object({ id: SandboxId, decisions: Type.Array(EgressDecision) })
export const EgressFlowsView = Type.Object({ id: SandboxId, flows: Type.Array(EgressFlow) })

export const HostVmNetworkReport = Type.Object({
  revision: Type.Integer(),
  bandwidth: HostBandwidth,
  /** The newest first. */
  decisions: Type.Array(EgressDecision),
  /** The most used first. */
  flows: Type.Array(EgressFlow),
})
export type HostVmNetworkReport = Static<typeof HostVmNetworkReport>

/** Since the sandbox was created, over all that it was paused and resumed. */
export const HostCounts = Type.Object({ used_bytes: Bytes, ingress_bytes: Bytes })
export type HostCounts = Static<typeof HostCounts>

/**
 * Of a VM that runs, what the kernel says; of one that does not, what it said last. `revision` is absent where this host
 * agent has not been told the network of a VM that runs: it then has what an agent before it was told.
 */
export const HostNetworks = Type.Object({
  vms: Type.Array(Type.Object({ id: SandboxId, revision: Type.Optional(Type.Integer()), ...HostCounts.properties })),
})
export type HostNetworks = Static<typeof HostNetworks>
