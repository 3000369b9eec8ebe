/** The tasks that the process of main.ts can measure. Times are in milliseconds, rates in MB/s. */
import { existsSync, mkdtempSync, watch } from 'node:fs'
import path from 'node:path'
import { until } from '@warren/kit/testing/until'
import { HOST_NETWORK_DEFAULT, type HostVmNetwork } from '@warren/protocol'
import { netnsName, netnsPath } from '../../../host-agent/src/net/names.ts'
import { renderSlotPolicy } from '../../../host-agent/src/net/netd/nft/slot-policy.ts'
import { compilePolicy } from '../../../host-agent/src/net/policy.ts'
import { SHOP } from '../../../host-agent/src/net/testing/internet-names.ts'
import { MACHINE } from '../../../host-agent/src/net/testing/machine.ts'
import { renderClientHello, toRecords } from '../../../host-agent/src/net/testing/render-client-hello.ts'
import { CIDR, TestNetwork, withRules } from '../../../host-agent/src/net/testing/test-network.ts'
import { RESOLVE, SEND } from './guest-programs.ts'
import { applyWithNft, setUpWithCommands, tearDownWithCommands } from './ip-and-nft.ts'
import { NamespaceGuest, runNode } from './namespace-guest.ts'

const POOL = 8
const SENT_BYTES = 100_000_000
const QUERIES = 50
const SETTINGS = { cidr: CIDR, privateCidrs: [], machine: MACHINE }
const DEFAULT_POLICY = compilePolicy(HOST_NETWORK_DEFAULT, SETTINGS)
const UNMETERED = { ...HOST_NETWORK_DEFAULT.bandwidth, quota_bytes: -1 }
const ADDRESSES = Array.from({ length: 1_000 }, (_, i) => `203.${i >> 8}.${i & 255}.0/24${i % 2 === 0 ? '' : ':443'}`)
/** The rules of each of the thousand other sandboxes. */
const MANY = [...ADDRESSES.slice(0, 100), ...Array.from({ length: 20 }, (_, i) => `*.host-${i}.example`)]
const HELLO = Buffer.concat(toRecords(renderClientHello('shop.example'))).toString('hex')

export const ROUTES = {
  open: withRules([], { bandwidth: UNMETERED }),
  rules: withRules([...ADDRESSES, SHOP], { bandwidth: UNMETERED }),
  proxy: withRules(['shop.example'], { bandwidth: UNMETERED }),
} satisfies Record<string, HostVmNetwork>

type Guest = { slot: number; guest: NamespaceGuest }

export class Tasks {
  readonly #testNet: TestNetwork
  #revision = 0
  #nextSlot = 500_000
  #sending: Promise<Guest> | undefined
  #first: Promise<Guest> | undefined
  #others = 0

  private constructor(testNet: TestNetwork) {
    this.#testNet = testNet
  }

  /** State for the next host agent is in memory, as it is in production below /run. */
  static async open(): Promise<Tasks> {
    const stateDir = mkdtempSync(existsSync('/dev/shm') ? '/dev/shm/warren-bench-' : '/tmp/warren-bench-')
    return new Tasks(await TestNetwork.open({ poolSize: POOL, stateDir }))
  }

  async close(): Promise<void> {
    for (const started of [this.#sending, this.#first]) (await started)?.guest.stop()
    await this.#testNet.close()
  }

  /** Without the pool. The teardown is timed until the namespace has no name; the kernel frees the rest afterwards. */
  async setUp(): Promise<{ setUp: number; tearDown: number }> {
    const { netd, host, instance } = this.#testNet.network
    const slot = this.#nextSlot++
    const address = { ip: '100.64.9.1', guestAddress: '100.64.9.1' }
    const claim = { slot, ...address, policy: DEFAULT_POLICY, usedBytes: 0, ingressBytes: 0, isPrepared: true }
    const setUp = await timed(async () => {
      await netd.request('createSlot', {
        slot,
        mtu: host.mtu,
        tapOwnerUid: 0,
        packetsPerSecond: 100_000,
        policy: DEFAULT_POLICY,
      })
      await netd.request('claimSlot', claim)
    })
    const removed = waitUntilRemoved(netnsPath(instance, slot))
    let released: Promise<unknown> = Promise.resolve()
    const tearDown = await timed(async () => {
      released = netd.request('releaseSlot', { slot })
      await removed
    })
    await released
    return { setUp, tearDown }
  }

  async setUpWithCommands(): Promise<{ setUp: number; tearDown: number }> {
    const setUp = await timed(() => setUpWithCommands('100.64.9.2', this.#testNet.network.host.mtu, DEFAULT_POLICY))
    return { setUp, tearDown: await timed(tearDownWithCommands) }
  }

  /** Claims every ready slot, one after the other. */
  async claim(): Promise<number[]> {
    const { slots } = this.#testNet.network
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

  async applyRulesWithNft(): Promise<number> {
    const { slot } = await this.#firstGuest()
    const text = renderSlotPolicy(compilePolicy(withRules(ADDRESSES), SETTINGS), undefined, true)
    const ms = await timed(() => applyWithNft(netnsName(this.#testNet.network.instance, slot), [text]))
    await this.#change(slot, withRules(['shop.example']))
    return ms
  }

  async send({ route }: { route: keyof typeof ROUTES }): Promise<number> {
    this.#sending ??= this.#startGuest('100.64.9.3', ROUTES.open)
    const { slot, guest } = await this.#sending
    await this.#change(slot, ROUTES[route])
    return Number(await guest.run(SEND, [SHOP, HELLO, `${SENT_BYTES}`]))
  }

  sendFromHost = async (): Promise<number> => Number(await runNode([], SEND, [SHOP, HELLO, `${SENT_BYTES}`]))

  async resolve(): Promise<number[]> {
    const { guest } = await this.#firstGuest()
    return JSON.parse(await guest.run(RESOLVE, ['shop.example', `${QUERIES}`]))
  }

  async changeFirst(): Promise<number> {
    const { slot } = await this.#firstGuest()
    return timed(() => this.#change(slot, withRules(['shop.example', `1.1.1.${this.#revision % 256}`])))
  }

  /** Adds sandboxes with 120 rules each up to that number; returns the time of each claim. */
  async addOthers({ upTo }: { upTo: number }): Promise<number[]> {
    const times: number[] = []
    for (; this.#others < upTo; this.#others++) {
      const ip = `100.64.${20 + (this.#others >> 8)}.${this.#others & 255}`
      times.push(await timed(() => this.#testNet.network.slots.claim(ip, withRules(MANY, this.#next()))))
    }
    return times
  }

  #firstGuest(): Promise<Guest> {
    this.#first ??= this.#startGuest('100.64.9.4', withRules(['shop.example']))
    return this.#first
  }

  async #startGuest(ip: string, network: HostVmNetwork): Promise<Guest> {
    const { slots, instance, host } = this.#testNet.network
    const { slot } = await slots.claim(ip, { ...network, ...this.#next() })
    return { slot, guest: await NamespaceGuest.start(instance, slot, ip, host.mtu) }
  }

  async #change(slot: number, network: HostVmNetwork): Promise<void> {
    await this.#testNet.network.slots.change(slot, { ...network, ...this.#next() })
  }

  #next(): { revision: number } {
    return { revision: ++this.#revision }
  }
}

function waitUntilRemoved(file: string): Promise<void> {
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
