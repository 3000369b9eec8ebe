/** What the host agent asks of netd, and what netd says by itself. One message each way, as JSON over Node's channel. */
import type { GatePorts } from './egress-proxy-protocol.ts'
import type { Policy } from './policy.ts'

export type HostSettings = {
  /** The block the sandboxes' addresses come from. */
  cidr: string
  /** The interface to the world; those of the default routes when absent. */
  uplink?: string
  gate: GatePorts
  /** TCP ports of the host open to sandboxes: the API's, when it listens beyond loopback. */
  apiPorts: readonly number[]
}

export type HostNetwork = {
  /** Empty: the machine has no default route, and sandboxes reach nothing beyond it. */
  uplinks: string[]
  /** For the guest's eth0: the smallest of the uplinks. */
  mtu: number
  /** For the operator: what works on this machine only with their help. */
  warnings: string[]
}

/** `policy`: what the slot's first owner will probably have. Until a claim nothing passes, with it or without. */
export type SlotSettings = { slot: number; mtu: number; tapOwnerUid: number; policy?: Policy }

export type SlotClaim = {
  slot: number
  ip: string
  policy: Policy
  /** What counting goes on from. */
  usedBytes: number
  ingressBytes: number
  /** The slot was made with this policy, to the last rule, and counts from nothing. */
  asPrepared?: boolean
}

export type PolicyChange = { slot: number; ip: string; policy: Policy; cut: boolean }

export type Usage = { quotaBytes: number; usedBytes: number; ingressBytes: number; capped: boolean }
/** A destination in the slot's table; no port where the protocol has none. */
export type Destination = { address: string; protocol: string; port?: number; packets: number }
/** `agoSeconds`: since the last attempt. */
export type Refused = Destination & { agoSeconds: number }
export type SlotReport = { usage: Usage; refused: Refused[]; flows: Destination[] }

export type FoundSlot = {
  slot: number
  /** The sandbox's address, when the slot was claimed. */
  ip?: string
  /** Has both its namespace and its link; anything else is the rest of a killed netd and can only be reaped. */
  complete: boolean
}

export type SpawnSettings = {
  slot: number
  command: string
  /** The tap of the slot is descriptor 3: `-netdev tap,id=n0,fd=3`. */
  args: readonly string[]
  uid: number
  gid: number
  env: Record<string, string>
  cwd?: string
  /** Files the output is appended to; stdin is empty. */
  stdoutPath?: string
  stderrPath: string
  /** The pid is written into each; one that refuses it ends the program. */
  cgroupProcs: readonly string[]
  /** What else it gets opened, from descriptor 4 on; `sealed` is a copy in memory that cannot be written to. */
  files?: readonly { fd: number; path: string; flags: 'r' | 'r+' | 'w' | 'sealed' }[]
}

/** `freed`: false when somebody still holds the tap. The link is gone then, the namespace goes with its last user. */
export type Released = { slot: number; freed: boolean }

export type NetdCalls = {
  setUpHost: (settings: HostSettings) => HostNetwork
  /** Ends all slots as well. */
  tearDownHost: () => { released: Released[] }
  createSlot: (settings: SlotSettings) => null
  claimSlot: (claim: SlotClaim) => null
  /** Of a claimed slot, while it is used. With `cut`, flows that the policy does not allow are ended. */
  changePolicy: (change: PolicyChange) => null
  readSlot: (read: { slot: number }) => SlotReport
  /** The counts alone, of many; those that are gone are left out. */
  readUsage: (read: { slots: readonly number[] }) => { slot: number; usage: Usage }[]
  releaseSlot: (release: { slot: number }) => Released
  listSlots: () => FoundSlot[]
  /** Every slot and file of this instance that does not belong to one of `except`. */
  reapAll: (reap: { except: readonly number[] }) => { released: Released[] }
  spawnIn: (settings: SpawnSettings) => { pid: number }
}

export type NetdMethod = keyof NetdCalls
export type NetdParams<M extends NetdMethod> = Parameters<NetdCalls[M]>
export type NetdResult<M extends NetdMethod> = ReturnType<NetdCalls[M]>

/** While netd lives. A program it started lives on without it, and then nobody is told: watch the program itself too. */
export type ProgramExit = { pid: number; code: number | null; signal: NodeJS.Signals | null }

export type NetdRequest = { id: number; method: NetdMethod; params: unknown[] }
export type NetdMessage =
  | { id: number; result: unknown }
  | { id: number; error: { message: string; code?: string } }
  | { exit: ProgramExit }
