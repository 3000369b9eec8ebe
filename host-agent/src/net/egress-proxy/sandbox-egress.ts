/** One sandbox in the egress proxy: its policy, its open connections, what it was refused and what it reached. */
import type { EgressDecision, EgressFlow, EgressRefusal } from '@warren/protocol'
import { DECISIONS_MAX, type EgressProxyReport, FLOWS_MAX } from '../egress-proxy-protocol.ts'
import { allowsName, type Policy } from '../policy.ts'
import { countRefusal } from './counts.ts'

/** `name`: the host that the guest asked for; undefined until the proxy has read it. */
export type Connection = { name: string | undefined; port: number; close: () => void }
export type Attempt = { via: 'dns' | 'tls' | 'http'; destination: string; protocol: 'tcp' | 'udp'; port?: number }

const FLOW_LIFETIME_MS = 24 * 60 * 60 * 1_000

export class SandboxEgress {
  policy: Policy
  readonly connections = new Set<Connection>()
  /** Equal attempts share one entry with a count. Least recently used first. */
  readonly #decisions = new Map<string, EgressDecision>()
  readonly #flows = new Map<string, EgressFlow & { since: number }>()

  constructor(policy: Policy) {
    this.policy = policy
  }

  /**
   * Closes connections that the new policy does not allow. Connections whose name is not known yet are checked against
   * the new policy when it is.
   */
  changePolicy(policy: Policy): void {
    this.policy = policy
    for (const { name, port, close } of [...this.connections]) {
      if (name !== undefined && !allowsName(policy, name, port)) close()
    }
  }

  recordRefusal(attempt: Attempt, reason: EgressRefusal): void {
    countRefusal(attempt.via, reason)
    const key = [attempt.via, attempt.destination, attempt.port, reason].join(' ')
    const count = (this.#decisions.get(key)?.count ?? 0) + 1
    this.#decisions.delete(key)
    this.#decisions.set(key, { ...attempt, at: new Date().toISOString(), reason, count })
    if (this.#decisions.size > DECISIONS_MAX) this.#decisions.delete(this.#decisions.keys().next().value!)
  }

  recordFlow(name: string, port: number): void {
    const key = `${name} ${port}`
    const now = Date.now()
    const previous = this.#flows.get(key)
    const isNew = previous === undefined || now - previous.since > FLOW_LIFETIME_MS
    this.#flows.delete(key)
    const since = isNew ? now : previous.since
    this.#flows.set(key, { destination: name, protocol: 'tcp', port, count: isNew ? 1 : previous.count + 1, since })
    if (this.#flows.size > FLOWS_MAX) this.#flows.delete(this.#flows.keys().next().value!)
  }

  report(): EgressProxyReport {
    const now = Date.now()
    return {
      decisions: [...this.#decisions.values()],
      flows: [...this.#flows.values()]
        .filter(({ since }) => now - since <= FLOW_LIFETIME_MS)
        .map(({ since: _, ...flow }) => flow),
    }
  }

  close(): void {
    for (const { close } of [...this.connections]) close()
  }
}
