/**
 * The messages between the host agent and the egress proxy. The proxy parses what guests send, so the host agent takes nothing
 * from it that does not match a schema of this file.
 */
import { EGRESS_REFUSALS, EgressDecision, EgressFlow, type EgressRefusal } from '@warren/protocol'
import { type Static, type TSchema, Type } from 'typebox'
import { type Method, RpcError, type RpcReply } from '../rpc/protocol.ts'
import type { Policy } from './policy.ts'

/** The ports on HOST_ADDRESS at which the egress proxy listens. */
export type EgressProxyPorts = { dns: number; http: number; tls: number }
/** A name server of the host. */
export type Upstream = { address: string; port: number }

/** Passed as the first argument of the process. */
export type EgressProxySettings = {
  address: string
  ports: EgressProxyPorts
  upstreams: Upstream[]
  /** DNS queries over TCP that one sandbox may send. */
  dnsPerSecond: number
}

/** The descriptor of the socket to the host agent. */
export const CHANNEL_FD = 3

/** Of one sandbox. */
export const DECISIONS_MAX = 200
export const FLOWS_MAX = 1_000
/** More than a report with the longest names. */
export const MESSAGE_MAX_BYTES = 4 * 1024 ** 2

const strict = { additionalProperties: false }
/** A host name has at most 253 characters; what is not one may be named in a refusal. */
const destination = Type.String({ maxLength: 1_024 })
const protocol = Type.String({ maxLength: 16 })
const Count = Type.Integer({ minimum: 0 })
const ByKind = Type.Object({ http: Count, tls: Count }, strict)

/** What the egress proxy refused and forwarded for one sandbox. */
export const EgressProxyReport = Type.Object(
  {
    decisions: Type.Array(Type.Object({ ...EgressDecision.properties, destination, protocol }, strict), {
      maxItems: DECISIONS_MAX,
    }),
    flows: Type.Array(Type.Object({ ...EgressFlow.properties, destination, protocol }, strict), {
      maxItems: FLOWS_MAX,
    }),
  },
  strict,
)
export type EgressProxyReport = Static<typeof EgressProxyReport>

/** Counted since the process started. */
export const EgressProxyCounts = Type.Object(
  {
    connections: ByKind,
    open: ByKind,
    dnsQueries: Type.Object({ local: Count, forwarded: Count }, strict),
    refusals: Type.Array(
      Type.Object(
        {
          via: Type.Enum(['dns', 'tls', 'http']),
          reason: Type.Enum(Object.keys(EGRESS_REFUSALS) as EgressRefusal[]),
          count: Count,
        },
        strict,
      ),
      { maxItems: 100 },
    ),
  },
  strict,
)
export type EgressProxyCounts = Static<typeof EgressProxyCounts>

export type EgressProxyCalls = {
  /** Takes effect for the sandboxes in the list; the others keep their policies. */
  setPolicies: (policies: { ip: string; policy: Policy }[]) => null
  /** Closes the sandbox's connections and drops its policy. */
  removeSandbox: (sandbox: { ip: string }) => null
  /** The name servers of the host, which change with its network. */
  setUpstreams: (upstreams: Upstream[]) => null
  report: (sandbox: { ip: string }) => EgressProxyReport
  counts: () => EgressProxyCounts
}

export const EGRESS_PROXY_RESULTS = {
  setPolicies: Type.Null(),
  removeSandbox: Type.Null(),
  setUpstreams: Type.Null(),
  report: EgressProxyReport,
  counts: EgressProxyCounts,
} satisfies Record<Method<EgressProxyCalls>, TSchema>

/** Before the first reply the process sends whether its sockets are open. */
export const EgressProxyStart = Type.Union([
  Type.Object({ ready: Type.Literal(true) }),
  Type.Object({ failed: RpcError }),
])
export type EgressProxyStart = Static<typeof EgressProxyStart>
export type EgressProxyMessage = EgressProxyStart | RpcReply
