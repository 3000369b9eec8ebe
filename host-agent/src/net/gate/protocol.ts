/** What the host agent says to the gate, and hears from it: JSON over Node's channel. */
import type { Upstream } from '../dns/upstreams.ts'
import type { GatePorts } from '../nft/host-table.ts'
import type { Policy } from '../policy.ts'
import type { GateReport } from './known.ts'

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
