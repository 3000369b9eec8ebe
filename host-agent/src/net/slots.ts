/**
 * Places in the network, and what holds in them. A sandbox's rules are in force in three places: its slot's table
 * (netd), the resolver and the proxy (gate), and a file for the next host agent. `give` and `change` settle when they
 * are in all three. Until then each place has the old rules or the new ones, and a new sandbox has none: nothing passes.
 *
 *   take → (a guest that is nobody yet) → give: address, rules, counters → change, as often as wanted → release
 *
 * Give before the guest runs its first instruction: until then nothing it sends gets out, and after it only what the
 * rules allow. Which sandbox has which slot is remembered by the VM registry. After a restart: adopt those that live,
 * `restore`, reap the rest (netd's reapAll, except `taken`), then start.
 */
import type { Log } from '@warren/kit/log'
import {
  type EgressFlow,
  HOST_NETWORK_DEFAULT,
  type HostBandwidth,
  type HostVmNetwork,
  type HostVmNetworkReport,
} from '@warren/protocol'
import type { Gate } from './egress-proxy-client.ts'
import type { Netd } from './netd-client.ts'
import { compilePolicy, narrows, type Policy, type PolicySettings, sameRules } from './policy.ts'
import { renderBandwidth, renderReport } from './report.ts'
import type { SlotPool } from './slot-pool.ts'
import type { Kept, KeptNetworks } from './slot-store.ts'

export type SlotsDeps = {
  netd: Pick<Netd, 'request'>
  gate: Pick<Gate, 'set' | 'forget' | 'report'>
  kept: KeptNetworks
  pool: SlotPool
  log: Pick<Log, 'warn'>
}

/** `policy`: the one in force; undefined when that is not known for certain. */
type Held = { ip: string; network: HostVmNetwork; policy?: Policy | undefined; lastWork: Promise<unknown> }

/** Older than anything we could be told. */
const UNKNOWN: HostVmNetwork = { ...HOST_NETWORK_DEFAULT, revision: -1 }

export class Slots {
  readonly #deps: SlotsDeps
  readonly #settings: PolicySettings
  readonly #held = new Map<number, Held>()
  /** From a host agent before this one, until adopted. */
  readonly #found = new Map<number, Kept>()

  private constructor(deps: SlotsDeps, settings: PolicySettings) {
    this.#deps = deps
    this.#settings = settings
  }

  /** The gate knows at once what was in force before. */
  static async open(deps: SlotsDeps, settings: PolicySettings): Promise<Slots> {
    const slots = new Slots(deps, settings)
    slots.#expect(HOST_NETWORK_DEFAULT.bandwidth.quota_bytes)
    for (const kept of await deps.kept.readAll()) {
      slots.#found.set(kept.slot, kept)
      await deps.gate.set(kept.ip, compilePolicy(kept.network, settings))
    }
    return slots
  }

  /** What reaping must leave alone: in use, ready, or on the way to either. */
  get taken(): number[] {
    return this.#deps.pool.taken
  }

  get readyCount(): number {
    return this.#deps.pool.readyCount
  }

  start(): { until: Promise<void> } {
    return this.#deps.pool.start()
  }

  /** A slot without an address: for a guest that is nobody yet. `give` makes it somebody's. */
  take(): Promise<number> {
    return this.#deps.pool.take()
  }

  /** When it fails, release the slot: it may be half given. */
  async give(slot: number, ip: string, network: HostVmNetwork = HOST_NETWORK_DEFAULT): Promise<void> {
    const policy = compilePolicy(network, this.#settings)
    if ([...this.#held.values()].some((held) => held.ip === ip)) throw new Error(`${ip} belongs to another slot`)
    this.#held.set(slot, { ip, network, policy, lastWork: Promise.resolve() })
    const { used_bytes: usedBytes, ingress_bytes: ingressBytes } = network.bandwidth
    const madeWith = this.#deps.pool.madeWith(slot)
    const asPrepared = usedBytes === 0 && ingressBytes === 0 && madeWith !== undefined && sameRules(madeWith, policy)
    this.#expect(policy.quotaBytes)
    await allOf(
      this.#deps.netd.request('claimSlot', { slot, ip, policy, usedBytes, ingressBytes, asPrepared }),
      this.#deps.gate.set(ip, policy),
      this.#deps.kept.write({ slot, ip, network }),
    )
  }

  async claim(ip: string, network?: HostVmNetwork): Promise<{ slot: number }> {
    const slot = await this.take()
    try {
      await this.give(slot, ip, network)
      return { slot }
    } catch (error) {
      // Half claimed perhaps. When this fails too, the number stays taken and the next reaping finds the slot.
      this.release(slot).catch((cause) => this.#deps.log.warn({ err: cause, slot }, 'could not release a slot'))
      throw new Error(`could not give ${ip} a slot`, { cause: error })
    }
  }

  /** One after the other for each slot; a revision lower than the one in force changes nothing. Gives the one in force. */
  async change(slot: number, network: HostVmNetwork): Promise<{ revision: number }> {
    const held = this.#get(slot)
    const work = held.lastWork.then(async () => {
      if (network.revision >= held.network.revision) await this.#apply(slot, held, network)
      return { revision: held.network.revision }
    })
    held.lastWork = work.catch(() => {})
    return work
  }

  async report(slot: number): Promise<HostVmNetworkReport> {
    const { ip, network } = this.#get(slot)
    const [inKernel, inGate] = await Promise.all([
      this.#deps.netd.request('readSlot', { slot }),
      this.#deps.gate.report(ip),
    ])
    return renderReport(network.revision, this.#settings.cidr, inKernel, inGate)
  }

  /** What was reached, also from a slot that nobody has adopted: then without what the gate alone has seen. */
  async flows(slot: number): Promise<EgressFlow[]> {
    const ip = this.#held.get(slot)?.ip
    const inKernel = await this.#deps.netd.request('readSlot', { slot })
    const inGate = ip === undefined ? { decisions: [], flows: [] } : await this.#deps.gate.report(ip)
    return renderReport(0, this.#settings.cidr, inKernel, inGate).flows
  }

  /** Of these slots, or of all in use. Read it before a release: the counters go with the slot. */
  async usage(slots: readonly number[] = [...this.#held.keys()]): Promise<Map<number, HostBandwidth>> {
    const found = await this.#deps.netd.request('readUsage', { slots })
    return new Map(found.map(({ slot, usage }) => [slot, renderBandwidth(usage)]))
  }

  /** A sandbox that lives from before: its slot is in the kernel already. */
  adopt(slot: number, ip: string): void {
    this.#deps.pool.adopt(slot)
    const found = this.#found.get(slot)
    this.#found.delete(slot)
    if (found?.ip === ip) return void this.#held.set(slot, { ...found, lastWork: Promise.resolve() })
    this.#deps.log.warn(
      { slot, ip },
      'the rules of a sandbox are not known here any more: no names until they are told',
    )
    this.#held.set(slot, { ip, network: UNKNOWN, lastWork: Promise.resolve() })
  }

  /** When all are adopted: a change that was under way when the last host agent ended is finished, the rest forgotten. */
  async restore(): Promise<void> {
    for (const [slot, held] of this.#held) {
      if (held.network === UNKNOWN) continue
      await this.#apply(slot, held, held.network).catch((error) =>
        this.#deps.log.warn({ err: error, slot }, 'could not restore the rules of a sandbox'),
      )
    }
    const inUse = new Set([...this.#held.values()].map(({ ip }) => ip))
    for (const { slot, ip } of this.#found.values()) {
      if (!inUse.has(ip)) await this.#deps.gate.forget(ip)
      if (!this.#held.has(slot)) await this.#deps.kept.remove(slot)
    }
    this.#found.clear()
  }

  /** When the program that holds its tap has ended. Safe to repeat. */
  async release(slot: number): Promise<void> {
    const held = this.#held.get(slot)
    await held?.lastWork
    if (held !== undefined) await this.#deps.gate.forget(held.ip)
    await this.#deps.pool.release(slot)
    await this.#deps.kept.remove(slot)
    this.#held.delete(slot)
  }

  /** Ready slots stay in the kernel for the next start's reaping. */
  close(): Promise<void> {
    return this.#deps.pool.close()
  }

  /** Most sandboxes begin with no rules and the quota that the operator chose, which the last claim tells. */
  #expect(quota: number): void {
    const { pool } = this.#deps
    if (pool.usual?.quotaBytes === quota) return
    const bandwidth = { ...HOST_NETWORK_DEFAULT.bandwidth, quota_bytes: quota }
    pool.usual = compilePolicy({ ...HOST_NETWORK_DEFAULT, bandwidth }, this.#settings)
  }

  async #apply(slot: number, held: Held, network: HostVmNetwork): Promise<void> {
    const policy = compilePolicy(network, this.#settings)
    const cut = held.policy === undefined || narrows(held.policy, policy)
    held.policy = undefined
    await allOf(
      this.#deps.netd.request('changePolicy', { slot, ip: held.ip, policy, cut }),
      this.#deps.gate.set(held.ip, policy),
      this.#deps.kept.write({ slot, ip: held.ip, network }),
    )
    held.network = network
    held.policy = policy
  }

  #get(slot: number): Held {
    const held = this.#held.get(slot)
    if (held === undefined) throw new Error(`slot ${slot} belongs to nobody`)
    return held
  }
}

/** Waits for all of them, also when one fails: whatever comes next must not meet them half done. */
async function allOf(...work: Promise<unknown>[]): Promise<void> {
  const failed = (await Promise.allSettled(work)).find((one) => one.status === 'rejected')
  if (failed !== undefined) throw failed.reason
}
