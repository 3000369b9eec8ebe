/** The requests of the host agent to netd and their results, as JSON over Node's channel. */
import type { EgressProxyPorts, Upstream } from './egress-proxy-protocol.ts'
import type { MachineNetwork } from './machine.ts'
import type { Policy } from './policy.ts'

/** Where sandboxes reach the API, as far as their rules allow it: always at HOST_ADDRESS. */
export type ApiListener = {
  /** 0 as long as it is not known: the system chooses the port, and sandboxes reach nothing. */
  port: number
  /** It also listens on other addresses of the host, not only on loopback. */
  beyondLoopback: boolean
}

/**
 * What one sandbox may use of what all of them share: the kernel's table of connections, its work on packets, and the
 * resolver. A guest that sends more loses packets, which its programs repeat; it gets no wrong answers.
 */
export type SandboxLimits = {
  /** Connections that the host tracks at the same time, UDP included. */
  flows: number
  newFlowsPerSecond: number
  /** In a slot, from its creation on. */
  packetsPerSecond: number
  dnsPerSecond: number
}

/** What the egress proxy may send (netd/nft/proxy-table.ts). */
export type ProxyAccess = {
  uid: number
  /** Used instead of the host's name servers, for tests. */
  upstreams?: Upstream[]
  /** Blocks inside closed ranges that a sandbox's rules may open. */
  privateCidrs: readonly string[]
}

/** What the S3 proxy may send (netd/nft/s3-proxy-chain.ts). */
export type S3ProxyAccess = {
  uid: number
  /** Blocks of private addresses in which stores may be. */
  privateCidrs: readonly string[]
  /** Ports of this machine at which stores of mounts are. */
  loopbackPorts: readonly number[]
}

export type HostSettings = {
  /** The block that the addresses of sandboxes are taken from. */
  cidr: string
  /** The interface to the internet. By default the interfaces of all default routes. */
  uplink?: string
  egressProxy: EgressProxyPorts
  /** The port of the S3 proxy at HOST_ADDRESS; 0 if there is none. */
  s3Port: number
  proxyAccess: ProxyAccess
  /** Absent if there is no S3 proxy. */
  s3ProxyAccess?: S3ProxyAccess
  api: ApiListener
  limits: SandboxLimits
}

export type HostNetwork = {
  /** Empty when the machine has no default route; sandboxes then reach nothing beyond the machine. */
  uplinks: string[]
  /** For the guest's eth0: the smallest MTU of the uplinks. */
  mtu: number
  /** For the operator: what they have to configure on this machine. */
  warnings: string[]
  machine: MachineNetwork
  /** The name servers that the egress proxy may ask. */
  upstreams: Upstream[]
}

export type HostCheck = {
  /** What another program had changed or removed. */
  restored: string[]
  machine: MachineNetwork
  upstreams: Upstream[]
}

export type SlotSettings = {
  slot: number
  mtu: number
  tapOwnerUid: number
  packetsPerSecond: number
  /** The policy that the slot's sandbox will probably have. With or without one, nothing passes until the claim. */
  policy?: Policy
}

export type SlotClaim = {
  slot: number
  ip: string
  /** The address that the guest sends from: `ip`, or INITIAL_GUEST_ADDRESS, which the slot then maps to `ip`. */
  guestAddress: string
  policy: Policy
  /** The initial values of the counters. */
  usedBytes: number
  ingressBytes: number
  /** The slot was created with exactly this policy, and its counters start at 0. */
  isPrepared?: boolean
}

export type PolicyChange = {
  slot: number
  ip: string
  policy: Policy
  /** Ends existing flows that the policy does not allow. */
  dropFlows: boolean
}

export type Usage = { quotaBytes: number; usedBytes: number; ingressBytes: number; capped: boolean }
/** `port` is absent for protocols without ports. */
export type Destination = { address: string; protocol: string; port?: number; packets: number }
/** `agoSeconds`: the time since the last attempt. */
export type RefusedDestination = Destination & { agoSeconds: number }
export type SlotReport = { usage: Usage; refused: RefusedDestination[]; flows: Destination[] }

export type FoundSlot = {
  slot: number
  /** The sandbox's address, when the slot is claimed. */
  ip?: string
  /** The slot has its namespace and its link. One without was left by a killed netd and can only be reaped. */
  complete: boolean
}

/**
 * `freed`: false when a process still holds the tap. The link is then deleted; the kernel frees the namespace when that
 * process exits.
 */
export type Released = { slot: number; freed: boolean }

export type NetdCalls = {
  setUpHost: (settings: HostSettings) => HostNetwork
  /** Repeated while the host agent runs (guard-host.ts). */
  checkHost: (settings: HostSettings) => HostCheck
  /** Releases all slots as well. */
  tearDownHost: () => { released: Released[] }
  createSlot: (settings: SlotSettings) => null
  claimSlot: (claim: SlotClaim) => null
  /** Changes the policy of a claimed slot while its sandbox runs. */
  changePolicy: (change: PolicyChange) => null
  readSlot: (read: { slot: number }) => SlotReport
  /** The counters of many slots. Slots that do not exist any more are left out. */
  readUsage: (read: { slots: readonly number[] }) => { slot: number; usage: Usage }[]
  releaseSlot: (release: { slot: number }) => Released
  listSlots: () => FoundSlot[]
  /** Releases every slot of this instance that is not in `except`. */
  reapAll: (reap: { except: readonly number[] }) => { released: Released[] }
}
