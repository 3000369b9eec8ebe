/** A host with its network and an internet behind it, for one test file. Its sandboxes are guests with rules. */
import { mkdtempSync, readdirSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createLog } from '@warren/kit/log'
import { HOST_NETWORK_DEFAULT, type HostVmNetwork } from '@warren/protocol'
import { VmmLauncher } from '../../vmm/launcher-client.ts'
import { INITIAL_GUEST_ADDRESS, netnsName } from '../names.ts'
import { type Network, type NetworkSettings, openNetwork } from '../open.ts'
import { type Guest, startGuest } from './guest.ts'
import { Internet, moveToFreshHost, NAME_SERVER, randomInstance, runLine } from './host.ts'

export const CIDR = '100.64.0.0/16'
export const API = { port: 8080, beyondLoopback: true }
/** So high that tests about other things do not notice them. */
export const LIMITS = { flows: 65_536, newFlowsPerSecond: 10_000, packetsPerSecond: 1_000_000, dnsPerSecond: 10_000 }

/** For requests to netd that a test makes itself. */
export const PROXY_ACCESS = { uid: 1_610_612_735, upstreams: [NAME_SERVER], privateCidrs: [] }

export type Sandbox = { slot: number; ip: string; guest: Guest; gatewayMac: string }

export const withRules = (egress: string[], rest: Partial<HostVmNetwork> = {}): HostVmNetwork => ({
  ...HOST_NETWORK_DEFAULT,
  egress,
  ...rest,
})

const log = createLog({ name: 'test', level: 'error', format: 'json' })

export class TestNetwork {
  readonly internet: Internet
  readonly launcher: VmmLauncher
  readonly sandboxes: Sandbox[] = []
  network: Network
  readonly #settings: NetworkSettings

  private constructor(internet: Internet, network: Network, settings: NetworkSettings) {
    this.internet = internet
    this.network = network
    this.launcher = new VmmLauncher(settings.instance)
    this.#settings = settings
  }

  static async open(change: Partial<NetworkSettings> = {}): Promise<TestNetwork> {
    await moveToFreshHost()
    const internet = await Internet.start()
    const settings = {
      instance: randomInstance(),
      cidr: CIDR,
      api: API,
      limits: LIMITS,
      poolSize: 2,
      tapOwnerUid: 0,
      proxyUid: PROXY_ACCESS.uid,
      stateDir: mkdtempSync(join(tmpdir(), 'warren-net-')),
      upstreams: [NAME_SERVER],
      ...change,
    }
    const network = await openNetwork(log, settings).catch((error) => {
      internet.stop() // The test would wait for it.
      throw error
    })
    await network.slots.start().until
    return new TestNetwork(internet, network, settings)
  }

  async addSandbox(ip: string, network?: HostVmNetwork): Promise<Sandbox> {
    const { slot } = await this.network.slots.claim(ip, network)
    return this.#startGuest(slot, ip, ip)
  }

  /** A guest that cannot change its address. */
  async addMappedSandbox(ip: string, network?: HostVmNetwork): Promise<Sandbox> {
    const { slot } = await this.network.slots.claim(ip, network, INITIAL_GUEST_ADDRESS)
    return this.#startGuest(slot, ip, INITIAL_GUEST_ADDRESS)
  }

  /** A guest on a slot without an address. */
  async addUnassignedGuest(): Promise<Sandbox> {
    return this.#startGuest(await this.network.slots.take(), '', INITIAL_GUEST_ADDRESS)
  }

  async #startGuest(slot: number, ip: string, address: string): Promise<Sandbox> {
    const guest = await startGuest(this.launcher, slot, address)
    const link = await runLine(`ip -n ${netnsName(this.network.instance, slot)} -o link show tap0`)
    const sandbox = { slot, ip, guest, gatewayMac: /link\/ether (\S+)/.exec(link)![1]! }
    this.sandboxes.push(sandbox)
    return sandbox
  }

  async removeSandbox({ slot, guest }: Sandbox): Promise<void> {
    await guest.stop()
    await this.network.slots.release(slot)
    this.sandboxes.splice(
      this.sandboxes.findIndex((one) => one.slot === slot),
      1,
    )
  }

  /** As after a restart of the host agent: its memory is lost, the sandboxes continue to run. */
  async restartHostAgent(): Promise<void> {
    await this.network.close()
    this.network = await openNetwork(log, this.#settings)
    for (const { slot, ip } of this.sandboxes) this.network.slots.adopt(slot, ip)
    await this.network.reap()
    await this.network.slots.start().until
  }

  /** The files for the next host agent (slot-store.ts). */
  storedFiles(): string[] {
    return readdirSync(this.#settings.stateDir)
  }

  async close(): Promise<void> {
    for (const { guest } of this.sandboxes) await guest.stop()
    await this.network.netd.request('tearDownHost')
    await this.network.close()
    await this.launcher.close()
    this.internet.stop()
    await rm(this.#settings.stateDir, { recursive: true, force: true })
  }
}
