/** A host with its network and an internet behind it, for one test file; sandboxes are guests with rules. */
import { mkdtempSync, readdirSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createLog } from '@warren/kit/log'
import { HOST_NETWORK_DEFAULT, type HostVmNetwork } from '@warren/protocol'
import { netnsName } from '../names.ts'
import { type Network, type NetworkSettings, openNetwork } from '../open.ts'
import { type Guest, startGuest } from './guest.ts'
import { command, Internet, moveToFreshHost, NAME_SERVER, randomInstance } from './host.ts'

export const CIDR = '100.64.0.0/16'
export const GUEST_MAC = '52:54:00:00:00:01'

export type Sandbox = { slot: number; ip: string; guest: Guest; gatewayMac: string }

export const withRules = (egress: string[], rest: Partial<HostVmNetwork> = {}): HostVmNetwork => ({
  ...HOST_NETWORK_DEFAULT,
  egress,
  ...rest,
})

export class World {
  readonly internet: Internet
  readonly sandboxes: Sandbox[] = []
  network: Network
  readonly #settings: NetworkSettings

  private constructor(internet: Internet, network: Network, settings: NetworkSettings) {
    this.internet = internet
    this.network = network
    this.#settings = settings
  }

  static async open(change: Partial<NetworkSettings> = {}): Promise<World> {
    await moveToFreshHost()
    const internet = await Internet.start()
    const settings = {
      instance: randomInstance(),
      cidr: CIDR,
      apiPorts: [8080],
      poolSize: 2,
      tapOwnerUid: 0,
      stateDir: mkdtempSync(join(tmpdir(), 'warren-net-')),
      upstreams: [NAME_SERVER],
      ...change,
    }
    const network = await openNetwork(createLog({ name: 'test', level: 'error', format: 'json' }), settings)
    await network.slots.start().until
    return new World(internet, network, settings)
  }

  async sandbox(ip: string, network?: HostVmNetwork): Promise<Sandbox> {
    const { slot } = await this.network.slots.claim(ip, network)
    return this.#furnish(slot, ip)
  }

  /** On a slot that has no address yet. */
  async nobody(): Promise<Sandbox> {
    return this.#furnish(await this.network.slots.take(), '')
  }

  async #furnish(slot: number, ip: string): Promise<Sandbox> {
    const guest = await startGuest(this.network.netd, slot)
    const link = await command(`ip -n ${netnsName(this.network.instance, slot)} -o link show tap0`)
    const sandbox = { slot, ip, guest, gatewayMac: /link\/ether (\S+)/.exec(link)![1]! }
    this.sandboxes.push(sandbox)
    return sandbox
  }

  async end({ slot, guest }: Sandbox): Promise<void> {
    await guest.stop()
    await this.network.slots.release(slot)
    this.sandboxes.splice(
      this.sandboxes.findIndex((one) => one.slot === slot),
      1,
    )
  }

  /** As after a host agent that was killed: all it had in memory is gone, the sandboxes go on. */
  async restartHostAgent(): Promise<void> {
    await this.network.close()
    this.network = await openNetwork(createLog({ name: 'test', level: 'error', format: 'json' }), this.#settings)
    for (const { slot, ip } of this.sandboxes) this.network.slots.adopt(slot, ip)
    await this.network.reap()
    await this.network.slots.start().until
  }

  /** What is kept for the next host agent. */
  keptFiles(): string[] {
    return readdirSync(this.#settings.stateDir)
  }

  async close(): Promise<void> {
    for (const { guest } of this.sandboxes) await guest.stop()
    await this.network.netd.request('tearDownHost')
    await this.network.close()
    this.internet.stop()
    await rm(this.#settings.stateDir, { recursive: true, force: true })
  }
}
