/** What the gate knows of one sandbox: what it may do, what it has open, what it was refused and where it went. */
import type { EgressDecision, EgressFlow, EgressRefusal } from '@warren/protocol'
import type { GateReport } from '../egress-proxy-protocol.ts'
import { allowsName, type Policy } from '../policy.ts'

export type Connection = { name: string | undefined; port: number; close: () => void }
export type Attempt = { via: 'dns' | 'tls' | 'http'; destination: string; protocol: 'tcp' | 'udp'; port?: number }

const DECISIONS_MAX = 200
const FLOWS_MAX = 1_000
const DAY_MS = 86_400_000

export class Known {
  policy: Policy
  readonly connections = new Set<Connection>()
  /** By what they have in common; the one touched last stands last. */
  readonly #decisions = new Map<string, EgressDecision>()
  readonly #flows = new Map<string, EgressFlow & { since: number }>()

  constructor(policy: Policy) {
    this.policy = policy
  }

  /** From now on; connections that it does not allow end. Those that have not said their name yet are judged then. */
  change(policy: Policy): void {
    this.policy = policy
    for (const { name, port, close } of [...this.connections]) {
      if (name !== undefined && !allowsName(policy, name, port)) close()
    }
  }

  refuse(attempt: Attempt, reason: EgressRefusal): void {
    const key = [attempt.via, attempt.destination, attempt.port, reason].join(' ')
    const count = (this.#decisions.get(key)?.count ?? 0) + 1
    this.#decisions.delete(key)
    this.#decisions.set(key, { ...attempt, at: new Date().toISOString(), reason, count })
    if (this.#decisions.size > DECISIONS_MAX) this.#decisions.delete(this.#decisions.keys().next().value!)
  }

  pass(name: string, port: number): void {
    const key = `${name} ${port}`
    const now = Date.now()
    const before = this.#flows.get(key)
    const isOld = before === undefined || now - before.since > DAY_MS
    this.#flows.delete(key)
    const since = isOld ? now : before.since
    this.#flows.set(key, { destination: name, protocol: 'tcp', port, count: isOld ? 1 : before.count + 1, since })
    if (this.#flows.size > FLOWS_MAX) this.#flows.delete(this.#flows.keys().next().value!)
  }

  report(): GateReport {
    const now = Date.now()
    return {
      decisions: [...this.#decisions.values()],
      flows: [...this.#flows.values()]
        .filter(({ since }) => now - since <= DAY_MS)
        .map(({ since: _, ...flow }) => flow),
    }
  }

  close(): void {
    for (const { close } of [...this.connections]) close()
  }
}
