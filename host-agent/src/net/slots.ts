/**
 * The slots of this host and the networks of the sandboxes in them. A sandbox's rules are enforced in two places, its
 * slot's table (netd) and the egress proxy, and stored in a file for the next host agent. `assign` and `change` settle when
 * all three have the rules. Until then each place has the old rules or the new ones, and a new sandbox has none: nothing
 * passes.
 *
 *   take → (a guest without an address) → assign address, rules and counters → change any number of times → release
 *
 * Call `assign` before the guest runs its first instruction: until then nothing that it sends gets out, and afterwards only
 * what the rules allow. The VM registry records which sandbox has which slot. After a restart of the host agent: `adopt`
 * the slots of running sandboxes, `restore`, reap the others (netd's reapAll, except `taken`), then `start`.
 */
import type { Log } from '@warren/kit/log'
import {
  HOST_NETWORK_DEFAULT,
  type HostBandwidth,
  type HostVmNetwork,
  type HostVmNetworkReport,
} from '@warren/protocol'
import type { EgressProxy } from './egress-proxy-client.ts'
import type { Machine } from './machine.ts'
import type { Netd } from './netd-client.ts'
import { compilePolicy, hasSameRules, narrows, type Policy, type PolicySettings } from './policy.ts'
import { renderBandwidth, renderReport } from './report.ts'
import type { SlotPool } from './slot-pool.ts'
import type { SlotStore, StoredSlot } from './slot-store.ts'

export type SlotsDeps = {
  netd: Pick<Netd, 'request'>
  egressProxy: Pick<EgressProxy, 'setPolicy' | 'removeSandbox' | 'report'>
  store: SlotStore
  pool: SlotPool
  log: Pick<Log, 'warn'>
}

type AssignedSlot = {
  ip: string
  network: HostVmNetwork
  /** The policy in force; undefined when that is not certain, as after a failed change. */
  policy?: Policy | undefined
  /** Settles when the changes requested so far are done. */
  lastChange: Promise<unknown>
  lastUsage?: SlotUsage
}

/** The counters of a slot and when they were read, in milliseconds of the monotonic clock. */
export type SlotUsage = { atMs: number; usage: HostBandwidth }

/** The network of an adopted sandbox whose file is lost. Every revision of the control plane is higher. */
const UNKNOWN: HostVmNetwork = { ...HOST_NETWORK_DEFAULT, revision: -1 }

export class Slots {
  readonly #deps: SlotsDeps
  #settings: PolicySettings
  readonly #assigned = new Map<number, AssignedSlot>()
  /** Stored by the previous host agent and not adopted yet. */
  readonly #stored = new Map<number, StoredSlot>()

  private constructor(deps: SlotsDeps, settings: PolicySettings) {
    this.#deps = deps
    this.#settings = settings
  }

  /** Sends the policies of the previous host agent to the egress proxy. */
  static async open(deps: SlotsDeps, settings: PolicySettings): Promise<Slots> {
    const slots = new Slots(deps, settings)
    slots.#expectQuota(HOST_NETWORK_DEFAULT.bandwidth.quota_bytes)
    for (const stored of await deps.store.list()) {
      slots.#stored.set(stored.slot, stored)
      await deps.egressProxy.setPolicy(stored.ip, compilePolicy(stored.network, settings))
    }
    return slots
  }

  /** The slots that reaping must keep: assigned, ready, or being created or released. */
  get taken(): number[] {
    return this.#deps.pool.taken
  }

  get readyCount(): number {
    return this.#deps.pool.readyCount
  }

  /** Fills the pool in the background; `until` settles when it is full for the first time, or closed. */
  start(): { until: Promise<void> } {
    return this.#deps.pool.start()
  }

  /** A slot without an address, for a VM that does not belong to a sandbox yet. */
  take(): Promise<number> {
    return this.#deps.pool.take()
  }

  /**
   * `guestAddress`: see `SlotClaim`. When this fails, release the slot: it may be assigned partly.
   */
  async assign(
    slot: number,
    ip: string,
    network: HostVmNetwork = HOST_NETWORK_DEFAULT,
    guestAddress = ip,
  ): Promise<void> {
    const policy = compilePolicy(network, this.#settings)
    if ([...this.#assigned.values()].some((one) => one.ip === ip)) throw new Error(`${ip} belongs to another slot`)
    this.#assigned.set(slot, { ip, network, policy, lastChange: Promise.resolve() })
    const { used_bytes: usedBytes, ingress_bytes: ingressBytes } = network.bandwidth
    const preparedPolicy = this.#deps.pool.preparedPolicy(slot)
    const isPrepared =
      usedBytes === 0 && ingressBytes === 0 && preparedPolicy !== undefined && hasSameRules(preparedPolicy, policy)
    this.#expectQuota(policy.quotaBytes)
    await waitForAll(
      this.#deps.netd.request('claimSlot', { slot, ip, guestAddress, policy, usedBytes, ingressBytes, isPrepared }),
      this.#deps.egressProxy.setPolicy(ip, policy),
      this.#deps.store.write({ slot, ip, network }),
    )
  }

  /** `take` and `assign` in one call. */
  async claim(ip: string, network?: HostVmNetwork, guestAddress?: string): Promise<{ slot: number }> {
    const slot = await this.take()
    try {
      await this.assign(slot, ip, network, guestAddress)
      return { slot }
    } catch (error) {
      // When the release fails too, the number stays taken until the next host agent reaps the slot.
      this.release(slot).catch((cause) => this.#deps.log.warn({ err: cause, slot }, 'failed to release a slot'))
      throw new Error(`failed to assign a slot to ${ip}`, { cause: error })
    }
  }

  /**
   * Changes of a slot are made one after another. A network with a lower revision than the current one changes nothing.
   * Returns the revision in force.
   */
  async change(slot: number, network: HostVmNetwork): Promise<{ revision: number }> {
    const assigned = this.#get(slot)
    const change = assigned.lastChange.then(async () => {
      if (network.revision >= assigned.network.revision) await this.#apply(slot, assigned, network)
      return { revision: assigned.network.revision }
    })
    assigned.lastChange = change.catch(() => {})
    return change
  }

  async report(slot: number): Promise<HostVmNetworkReport> {
    const { ip, network } = this.#get(slot)
    const [slotReport, proxyReport] = await Promise.all([
      this.#deps.netd.request('readSlot', { slot }),
      this.#deps.egressProxy.report(ip),
    ])
    return renderReport(network.revision, this.#settings, slotReport, proxyReport)
  }

  /**
   * What the sandbox reached and what it was refused. Of a slot that was not adopted, without what only the egress proxy
   * knows.
   */
  async destinations(slot: number): Promise<Pick<HostVmNetworkReport, 'flows' | 'decisions'>> {
    const ip = this.#assigned.get(slot)?.ip
    const slotReport = await this.#deps.netd.request('readSlot', { slot })
    const proxyReport = ip === undefined ? { decisions: [], flows: [] } : await this.#deps.egressProxy.report(ip)
    const { flows, decisions } = renderReport(0, this.#settings, slotReport, proxyReport)
    return { flows, decisions }
  }

  /** Of the given slots, or of all assigned ones. Read it before the release: the counters are deleted with the slot. */
  async usage(slots: readonly number[] = [...this.#assigned.keys()]): Promise<Map<number, HostBandwidth>> {
    const found = await this.#deps.netd.request('readUsage', { slots })
    const atMs = performance.now()
    return new Map(
      found.map(({ slot, usage: read }) => {
        const usage = renderBandwidth(read)
        const assigned = this.#assigned.get(slot)
        if (assigned) assigned.lastUsage = { atMs, usage }
        return [slot, usage]
      }),
    )
  }

  /**
   * Like `usage`, but a slot that was read within `maxAgeMs` is not read again. The control plane asks for the counters of
   * all sandboxes every two seconds, so there is usually nothing to read.
   */
  async recentUsage(slots: readonly number[], maxAgeMs: number): Promise<Map<number, SlotUsage>> {
    const oldest = performance.now() - maxAgeMs
    const old = slots.filter((slot) => (this.#assigned.get(slot)?.lastUsage?.atMs ?? Number.NEGATIVE_INFINITY) < oldest)
    if (old.length > 0) await this.usage(old)
    return new Map(
      slots.flatMap((slot) => {
        const found = this.#assigned.get(slot)?.lastUsage
        return found ? [[slot, found] as const] : []
      }),
    )
  }

  /** For a sandbox that outlived the previous host agent: its slot exists in the kernel. */
  adopt(slot: number, ip: string): void {
    this.#deps.pool.adopt(slot)
    const stored = this.#stored.get(slot)
    this.#stored.delete(slot)
    if (stored?.ip === ip) return void this.#assigned.set(slot, { ...stored, lastChange: Promise.resolve() })
    this.#deps.log.warn(
      { slot, ip },
      'the stored network of a sandbox is lost; it cannot resolve names until the control plane sends it again',
    )
    this.#assigned.set(slot, { ip, network: UNKNOWN, lastChange: Promise.resolve() })
  }

  /** The address that the previous host agent assigned to a slot that is not adopted yet. */
  findStoredAddress(slot: number): string | undefined {
    return this.#stored.get(slot)?.ip
  }

  /** For a VM whose sandbox is not known: its slot remains as it is. */
  keep(slot: number): void {
    if (this.taken.includes(slot)) return
    const ip = this.findStoredAddress(slot)
    if (ip === undefined) this.#deps.pool.adopt(slot)
    else this.adopt(slot, ip)
  }

  /**
   * Call it when all slots are adopted. Applies the stored networks, because the previous host agent may have exited
   * during a change, and deletes what is stored of sandboxes that were not adopted.
   */
  async restore(): Promise<void> {
    for (const [slot, assigned] of this.#assigned) {
      if (assigned.network === UNKNOWN) continue
      await this.#apply(slot, assigned, assigned.network).catch((error) =>
        this.#deps.log.warn({ err: error, slot }, 'failed to restore the network rules of a sandbox'),
      )
    }
    const usedIps = new Set([...this.#assigned.values()].map(({ ip }) => ip))
    for (const { slot, ip } of this.#stored.values()) {
      if (!usedIps.has(ip)) await this.#deps.egressProxy.removeSandbox(ip)
      if (!this.#assigned.has(slot)) await this.#deps.store.delete(slot)
    }
    this.#stored.clear()
  }

  /** Call it when the program that holds the tap has exited. Safe to repeat. */
  async release(slot: number): Promise<void> {
    const assigned = this.#assigned.get(slot)
    await assigned?.lastChange
    if (assigned !== undefined) await this.#deps.egressProxy.removeSandbox(assigned.ip)
    await this.#deps.pool.release(slot)
    await this.#deps.store.delete(slot)
    this.#assigned.delete(slot)
  }

  /** Applies what changed about this machine to all sandboxes. Slots without an address get it with their claim. */
  async changeMachine(machine: Machine): Promise<void> {
    this.#settings = { ...this.#settings, machine }
    const quotaBytes = this.#deps.pool.expectedPolicy?.quotaBytes ?? HOST_NETWORK_DEFAULT.bandwidth.quota_bytes
    this.#deps.pool.expectedPolicy = undefined
    this.#expectQuota(quotaBytes)
    for (const [slot, assigned] of this.#assigned) {
      const change = assigned.lastChange.then(async () => {
        if (assigned.network === UNKNOWN || this.#assigned.get(slot) !== assigned) return
        await this.#apply(slot, assigned, assigned.network)
      })
      assigned.lastChange = change.catch((error) =>
        this.#deps.log.warn({ err: error, slot }, 'failed to close the networks of this machine to a sandbox'),
      )
      await assigned.lastChange
    }
  }

  /** Ready slots remain in the kernel until the next start reaps them. */
  close(): Promise<void> {
    return this.#deps.pool.close()
  }

  /** Most sandboxes start without rules and with the operator's default quota, which the last assignment shows. */
  #expectQuota(quotaBytes: number): void {
    const { pool } = this.#deps
    if (pool.expectedPolicy?.quotaBytes === quotaBytes) return
    const bandwidth = { ...HOST_NETWORK_DEFAULT.bandwidth, quota_bytes: quotaBytes }
    pool.expectedPolicy = compilePolicy({ ...HOST_NETWORK_DEFAULT, bandwidth }, this.#settings)
  }

  async #apply(slot: number, assigned: AssignedSlot, network: HostVmNetwork): Promise<void> {
    const policy = compilePolicy(network, this.#settings)
    const dropFlows = assigned.policy === undefined || narrows(assigned.policy, policy)
    assigned.policy = undefined
    await waitForAll(
      this.#deps.netd.request('changePolicy', { slot, ip: assigned.ip, policy, dropFlows }),
      this.#deps.egressProxy.setPolicy(assigned.ip, policy),
      this.#deps.store.write({ slot, ip: assigned.ip, network }),
    )
    assigned.network = network
    assigned.policy = policy
  }

  #get(slot: number): AssignedSlot {
    const assigned = this.#assigned.get(slot)
    if (assigned === undefined) throw new Error(`slot ${slot} is not assigned to a sandbox`)
    return assigned
  }
}

/** Waits for all of them even when one fails: the next step must not run while they are still in progress. */
async function waitForAll(...work: Promise<unknown>[]): Promise<void> {
  const failed = (await Promise.allSettled(work)).find((one) => one.status === 'rejected')
  if (failed !== undefined) throw failed.reason
}
