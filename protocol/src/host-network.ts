/**
 * The network configuration of a sandbox, which the control plane sends to the host that runs it, and what that host
 * reports. A running VM is reconfigured live, in one transaction.
 *
 * The configuration is always sent completely, never as a change: repeating it has no effect, and the next one corrects
 * a host that missed the previous one. It is also part of create and resume, where it is in force before the guest runs.
 *
 * The control plane increments `revision` with every change for a sandbox. A host that already has a higher revision
 * keeps it and reports it, so when two changes overtake each other the later one wins. (The fence orders operations;
 * several network changes can share one fence.)
 *
 * Members are identified by address, not by host. Two sandboxes can reach each other only if each is a member in the
 * configuration of the other, so leaving takes effect as soon as one of the two hosts is notified.
 */
import { type Static, Type } from 'typebox'
import { BANDWIDTH_QUOTA_DEFAULT_BYTES, BANDWIDTH_UNMETERED } from './bandwidth.ts'
import { EgressRules } from './egress.ts'
import { EgressDecision, EgressFlow } from './egress-report.ts'
import { NetworkId, ResourceName, SandboxId } from './ids.ts'
import { SandboxName } from './sandbox.ts'

const Ipv4 = Type.String({ pattern: '^\\d{1,3}(\\.\\d{1,3}){3}$' })
const Bytes = Type.Integer({ minimum: 0 })

/** `name` is the name of the sandbox. The list may or may not contain the configured sandbox itself. */
export const HostNetworkMember = Type.Object({ ip: Ipv4, name: SandboxName })
export type HostNetworkMember = Static<typeof HostNetworkMember>

export const HostVmNetwork = Type.Object({
  revision: Type.Integer({ minimum: 0 }),
  /** As given by the owner, checked with parseEgressRules. An empty list allows everything. */
  egress: EgressRules,
  networks: Type.Array(
    Type.Object({
      id: NetworkId,
      /** Absent in configurations that older versions stored. */
      name: Type.Optional(ResourceName),
      members: Type.Array(HostNetworkMember),
    }),
  ),
  bandwidth: Type.Object({
    quota_bytes: Type.Integer({ minimum: BANDWIDTH_UNMETERED, description: '-1 for no limit.' }),
    /** Initial counts of a VM that gets its network. Ignored for a VM that has one, whose counts are in the kernel. */
    used_bytes: Bytes,
    ingress_bytes: Bytes,
  }),
})
export type HostVmNetwork = Static<typeof HostVmNetwork>

/** The network of a sandbox without any network settings. */
export const HOST_NETWORK_DEFAULT: HostVmNetwork = {
  revision: 0,
  egress: [],
  networks: [],
  bandwidth: { quota_bytes: BANDWIDTH_QUOTA_DEFAULT_BYTES, used_bytes: 0, ingress_bytes: 0 },
}

export const HostVmNetworkBody = Type.Object({ fence: Type.Integer({ minimum: 1 }), network: HostVmNetwork })
export type HostVmNetworkBody = Static<typeof HostVmNetworkBody>

/** `revision` is the one in force. It is higher than the requested one if that arrived late. */
export const HostVmNetworkApplied = Type.Object({ revision: Type.Integer() })
export type HostVmNetworkApplied = Static<typeof HostVmNetworkApplied>

export const HostBandwidth = Type.Object({
  quota_bytes: Type.Integer({ description: '-1 for no limit.' }),
  used_bytes: Type.Integer({ description: 'Bytes sent since the sandbox was created.' }),
  ingress_bytes: Type.Integer({ description: 'Bytes received since the sandbox was created.' }),
  capped: Type.Boolean({ description: 'True while outbound packets are dropped because the quota is used up.' }),
})
export type HostBandwidth = Static<typeof HostBandwidth>

export const HostVmNetworkReport = Type.Object({
  revision: Type.Integer(),
  bandwidth: HostBandwidth,
  /** Newest first. */
  decisions: Type.Array(EgressDecision),
  /** Most used first. */
  flows: Type.Array(EgressFlow),
})
export type HostVmNetworkReport = Static<typeof HostVmNetworkReport>

/** Counted since the sandbox was created, across pause and resume. */
export const HostCounts = Type.Object({ used_bytes: Bytes, ingress_bytes: Bytes })
export type HostCounts = Static<typeof HostCounts>

/**
 * Counts of a running VM come from the kernel; those of any other VM are the last ones known. `revision` is absent for a
 * running VM whose network was configured by an earlier host agent process.
 */
export const HostNetworks = Type.Object({
  vms: Type.Array(Type.Object({ id: SandboxId, revision: Type.Optional(Type.Integer()), ...HostCounts.properties })),
})
export type HostNetworks = Static<typeof HostNetworks>
