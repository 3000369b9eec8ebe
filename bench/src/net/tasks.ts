/** What the network's own process can be asked to measure (main.ts). Times are in milliseconds, rates in MB/s. */
import { existsSync, mkdtempSync, watch } from 'node:fs'
import path from 'node:path'
import { until } from '@warren/kit/testing/until'
import { HOST_NETWORK_DEFAULT, type HostVmNetwork } from '@warren/protocol'
import { netnsName, netnsPath } from '../../../host-agent/src/net/names.ts'
import { renderSlotPolicy } from '../../../host-agent/src/net/netd/nft/slot-policy.ts'
import { compilePolicy } from '../../../host-agent/src/net/policy.ts'
import { SHOP } from '../../../host-agent/src/net/testing/internet-names.ts'
import { inRecords, renderHello } from '../../../host-agent/src/net/testing/render-client-hello.ts'
import { CIDR, World, withRules } from '../../../host-agent/src/net/testing/test-network.ts'
import { applyByCommand, setUpByCommands, tearDownByCommands } from './by-commands.ts'
import { FastGuest, runNode } from './fast-guest.ts'
import { ASK, POUR } from './programs.ts'

const POOL = 8
const POUR_BYTES = 100_000_000
const QUESTIONS = 50
const SETTINGS = { cidr: CIDR, privateCidrs: [] }
const USUAL = compilePolicy(HOST_NETWORK_DEFAULT, SETTINGS)
const UNMETERED = { ...HOST_NETWORK_DEFAULT.bandwidth, quota_bytes: -1 }
const ADDRESSES = Array.from({ length: 1_000 }, (_, i) => `203.${i >> 8}.${i & 255}.0/24${i % 2 === 0 ? '' : ':443'}`)
/** What each of a thousand others has. */
const MANY = [...ADDRESSES.slice(0, 100), ...Array.from({ length: 20 }, (_, i) => `*.host-${i}.example`)]
const HELLO = Buffer.concat(inRecords(renderHello('shop.example'))).toString('hex')

export const WAYS = {
  open: withRules([], { bandwidth: UNMETERED }),
  rules: withRules([...ADDRESSES, SHOP], { bandwidth: UNMETERED }),
  proxy: withRules(['shop.example'], { bandwidth: UNMETERED }),
} satisfies Record<string, HostVmNetwork>

type Guest = { slot: number; guest: FastGuest }

export class Tasks {
  readonly #world: World
  #revision = 0
  #nextSlot = 500_000
  #pouring: Promise<Guest> | undefined
  #first: Promise<Guest> | undefined
  #others = 0

  private constructor(world: World) {
    this.#world = world
  }

  /** What is kept for the next host agent is in memory, as it is below /run. */
  static async open(): Promise<Tasks> {
    const stateDir = mkdtempSync(existsSync('/dev/shm') ? '/dev/shm/warren-bench-' : '/tmp/warren-bench-')
    return new Tasks(await World.open({ poolSize: POOL, stateDir }))
  }

  async close(): Promise<void> {
    for (const one of [this.#pouring, this.#first]) (await one)?.guest.stop()
    await this.#world.close()
  }

  /** Without the pool. Teardown ends when the namespace is out of reach; the kernel frees it by itself, and is waited for. */
  async setUp(): Promise<{ setUp: number; tearDown: number }> {
    const { netd, host, instance } = this.#world.network
    const slot = this.#nextSlot++
    const claim = { slot, ip: '100.64.9.1', policy: USUAL, usedBytes: 0, ingressBytes: 0, asPrepared: true }
    const setUp = await timed(async () => {
      await netd.request('createSlot', { slot, mtu: host.mtu, tapOwnerUid: 0, policy: USUAL })
      await netd.request('claimSlot', claim)
    })
    const gone = untilGone(netnsPath(instance, slot))
    let released: Promise<unknown> = Promise.resolve()
    const tearDown = await timed(async () => {
      released = netd.request('releaseSlot', { slot })
      await gone
    })
    await released
    return { setUp, tearDown }
  }

  async setUpByCommands(): Promise<{ setUp: number; tearDown: number }> {
    const setUp = await timed(() => setUpByCommands('100.64.9.2', this.#world.network.host.mtu, USUAL))
    return { setUp, tearDown: await timed(tearDownByCommands) }
  }

  /** As many as are ready, one after the other. */
  async claim(): Promise<number[]> {
    const { slots } = this.#world.network
    await until(() => slots.readyCount === POOL)
    const [times, claimed]: [number[], number[]] = [[], []]
    for (let i = 0; i < POOL; i++) {
      times.push(await timed(async () => claimed.push((await slots.claim(`100.64.9.${10 + i}`)).slot)))
    }
    for (const slot of claimed) await slots.release(slot)
    return times
  }

  async applyRules(): Promise<number> {
    const { slot } = await this.#firstGuest()
    const ms = await timed(() => this.#change(slot, withRules(ADDRESSES)))
    await this.#change(slot, withRules(['shop.example']))
    return ms
  }

  async applyRulesByCommand(): Promise<number> {
    const { slot } = await this.#firstGuest()
    const text = renderSlotPolicy(compilePolicy(withRules(ADDRESSES), SETTINGS), undefined, true)
    const ms = await timed(() => applyByCommand(netnsName(this.#world.network.instance, slot), [text]))
    await this.#change(slot, withRules(['shop.example']))
    return ms
  }

  async pour({ way }: { way: keyof typeof WAYS }): Promise<number> {
    this.#pouring ??= this.#startGuest('100.64.9.3', WAYS.open)
    const { slot, guest } = await this.#pouring
    await this.#change(slot, WAYS[way])
    return Number(await guest.run(POUR, [SHOP, HELLO, `${POUR_BYTES}`]))
  }

  pourFromHost = async (): Promise<number> => Number(await runNode([], POUR, [SHOP, HELLO, `${POUR_BYTES}`]))

  async ask(): Promise<number[]> {
    const { guest } = await this.#firstGuest()
    return JSON.parse(await guest.run(ASK, ['shop.example', `${QUESTIONS}`]))
  }

  async changeFirst(): Promise<number> {
    const { slot } = await this.#firstGuest()
    return timed(() => this.#change(slot, withRules(['shop.example', `1.1.1.${this.#revision % 256}`])))
  }

  /** Others with 120 rules each, until there are so many; the times of their claims. */
  async addOthers({ upTo }: { upTo: number }): Promise<number[]> {
    const times: number[] = []
    for (; this.#others < upTo; this.#others++) {
      const ip = `100.64.${20 + (this.#others >> 8)}.${this.#others & 255}`
      times.push(await timed(() => this.#world.network.slots.claim(ip, withRules(MANY, this.#next()))))
    }
    return times
  }

  #firstGuest(): Promise<Guest> {
    this.#first ??= this.#startGuest('100.64.9.4', withRules(['shop.example']))
    return this.#first
  }

  async #startGuest(ip: string, network: HostVmNetwork): Promise<Guest> {
    const { slots, instance, host } = this.#world.network
    const { slot } = await slots.claim(ip, { ...network, ...this.#next() })
    return { slot, guest: await FastGuest.start(instance, slot, host.mtu) }
  }

  async #change(slot: number, network: HostVmNetwork): Promise<void> {
    await this.#world.network.slots.change(slot, { ...network, ...this.#next() })
  }

  #next(): { revision: number } {
    return { revision: ++this.#revision }
  }
}

function untilGone(file: string): Promise<void> {
  return new Promise((resolve) => {
    const watcher = watch(path.dirname(file), () => {
      if (existsSync(file)) return
      watcher.close()
      resolve()
    })
  })
}

async function timed(work: () => Promise<unknown>): Promise<number> {
  const startedAt = performance.now()
  await work()
  return performance.now() - startedAt
}
