/** What the host agent says to the gate, and hears from it: JSON over Node's channel. */
import type { EgressDecision, EgressFlow } from '@warren/protocol'
import type { Policy } from './policy.ts'

/** Where the gate listens on HOST_ADDRESS. */
export type GatePorts = { dns: number; http: number; tls: number }
/** A name server of the host. */
export type Upstream = { address: string; port: number }
export type GateReport = { decisions: EgressDecision[]; flows: EgressFlow[] }

export type GateSettings = {
  address: string
  ports: GatePorts
  /** Asked instead of the host's own name servers: for tests. */
  upstreams?: Upstream[]
  /** Who it becomes once its sockets are open. */
  uid: number
}

export type GateCalls = {
  /** From now on, for these; those not named stay as they are. */
  setPolicies: (policies: { ip: string; policy: Policy }[]) => null
  forget: (sandbox: { ip: string }) => null
  report: (sandbox: { ip: string }) => GateReport
}
export type GateMethod = keyof GateCalls

export type GateRequest = { id: number; method: GateMethod; params: unknown }
export type GateMessage =
  | { ready: true }
  | { failed: { message: string; code?: string } }
  | { id: number; result: unknown }
