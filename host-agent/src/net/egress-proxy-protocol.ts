/** The messages between the host agent and the egress proxy, as JSON over Node's channel. */
import type { EgressDecision, EgressFlow, EgressRefusal } from '@warren/protocol'
import type { RpcError, RpcReply } from '../rpc/protocol.ts'
import type { Policy } from './policy.ts'

/** The ports on HOST_ADDRESS at which the egress proxy listens. */
export type EgressProxyPorts = { dns: number; http: number; tls: number }
/** A name server of the host. */
export type Upstream = { address: string; port: number }

/** Passed as the first argument of the process. */
export type EgressProxySettings = {
  address: string
  ports: EgressProxyPorts
  /** Used instead of the host's name servers, for tests. */
  upstreams?: Upstream[]
  /** DNS queries over TCP that one sandbox may send. */
  dnsPerSecond: number
  /** The user that the process switches to once its sockets are open. */
  uid: number
}

/** What the egress proxy refused and forwarded for one sandbox. */
export type EgressProxyReport = { decisions: EgressDecision[]; flows: EgressFlow[] }

/** Counted since the process started. */
export type EgressProxyCounts = {
  connections: { http: number; tls: number }
  open: { http: number; tls: number }
  dnsQueries: { local: number; forwarded: number }
  refusals: { via: 'dns' | 'tls' | 'http'; reason: EgressRefusal; count: number }[]
}

export type EgressProxyCalls = {
  /** Takes effect for the sandboxes in the list; the others keep their policies. */
  setPolicies: (policies: { ip: string; policy: Policy }[]) => null
  /** Closes the sandbox's connections and drops its policy. */
  removeSandbox: (sandbox: { ip: string }) => null
  report: (sandbox: { ip: string }) => EgressProxyReport
  counts: () => EgressProxyCounts
}

/** Before the first reply the process sends whether its sockets are open. */
export type EgressProxyMessage = { ready: true } | { failed: RpcError } | RpcReply
