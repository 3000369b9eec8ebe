/**
 * The VMs of a fake host: the real states without real VMs. A lower fence is rejected, even for a deleted VM. An
 * operation with the same fence is not performed twice. A pause that fails leaves the VM running, a resume that fails
 * leaves it unchanged. Saved generations are numbered and can be damaged; the guest's files are saved with them, so a
 * fork has copies.
 *
 * Hooks are awaited at their points: an error they throw becomes the response, and a hook that never resolves hangs the
 * request.
 */
import { cp, mkdtemp } from 'node:fs/promises'
import path from 'node:path'
import {
  HOST_NETWORK_DEFAULT,
  type HostImage,
  type HostNetworks,
  type HostVm,
  type HostVmCreateBody,
  type HostVmForkBody,
  type HostVmForked,
  type HostVmNetworkApplied,
  type HostVmNetworkBody,
  type HostVmNetworkReport,
  type HostVmPauseBody,
  type HostVmPaused,
  type HostVmResumeBody,
  type HostVmResumed,
  PROCESS_JOURNAL_MAX_BYTES,
} from '@warren/protocol'
import type { FakeGuest } from './fake-guest.ts'
import { FakeNetwork } from './fake-network.ts'
import { endCommands, endGuest, FakeHostFailure, type FakeVm, type VmHooks } from './fake-vm.ts'

const HOLDS_MEMORY: HostVm['state'][] = ['creating', 'running', 'pausing', 'resuming']

export class FakeVms {
  readonly vms = new Map<string, FakeVm>()
  hooks: VmHooks = {}
  images: HostImage[]
  memMib: number
  protected readonly folder: string
  readonly #fences = new Map<string, number>()
  /** Incremented when the agent dies: operations of a dead agent do not continue. */
  #life = 0

  constructor(folder: string, options: { memMib: number; images: HostImage[] }) {
    this.folder = folder
    this.memMib = options.memMib
    this.images = options.images
  }

  listVms(): HostVm[] {
    return [...this.vms.values()].map(({ id, fence, state, reason, generations, signal }) => ({
      id,
      fence,
      state,
      ...(reason === undefined ? {} : { reason }),
      ...(generations.length === 0 ? {} : { generation: generations.at(-1)! }),
      ...(signal === undefined ? {} : { signal }),
    }))
  }

  /**
   * `aborted` rejects when the caller has disconnected or the time is up: a create, unlike the other operations, is
   * then undone.
   */
  async createVm(body: HostVmCreateBody, aborted: Promise<never>): Promise<{ spawn_ms: number; how: 'clone' }> {
    this.#checkFence(body.id, body.fence, true)
    if (!this.images.some((image) => image.name === body.image && image.state === 'ready')) {
      throw new FakeHostFailure('image_not_ready', body.image)
    }
    this.#checkRoom(body.id, body)
    const vm = this.#newVm(body, 'creating', await mkdtemp(path.join(this.folder, 'vm-')))
    const within = <T>(work: T) => Promise.race([work, aborted])
    try {
      await within(this.hooks.beforeCreate?.(body))
      if (this.vms.get(body.id) !== vm) throw new FakeHostFailure('fence_lost', 'deleted meanwhile')
      vm.state = 'running'
      await within(this.hooks.afterCreate?.(body))
      return { spawn_ms: 12.5, how: 'clone' }
    } catch (error) {
      if (this.vms.get(body.id) === vm) this.vms.delete(body.id)
      throw error
    }
  }

  pauseVm(id: string, { fence }: HostVmPauseBody): Promise<HostVmPaused> {
    const vm = this.#enter(id, fence)
    return this.#once(vm, `pause ${fence}`, async (alive) => {
      if (vm.state !== 'running') throw new FakeHostFailure('wrong_state', `VM ${id} is ${vm.state}`)
      vm.state = 'pausing'
      try {
        await this.hooks.beforePause?.(id)
        alive()
        if (vm.state !== 'pausing') throw new FakeHostFailure('wrong_state', `VM ${id} is ${vm.state}`)
      } catch (error) {
        if (alive.is() && vm.state === 'pausing') vm.state = 'running'
        throw error
      }
      const generation = (vm.generations.at(-1) ?? 0) + 1
      // The previous generation is kept until this one is proven.
      vm.generations = [...vm.generations.slice(-1), generation]
      vm.state = 'paused'
      delete vm.signal
      endCommands(vm)
      await this.hooks.afterPause?.(id)
      const counts = { used_bytes: vm.network.usedBytes, ingress_bytes: vm.network.ingressBytes }
      return { generation, took_ms: 1, dirty_bytes: 0, written_bytes: 0, counts }
    })
  }

  resumeVm(id: string, body: HostVmResumeBody): Promise<HostVmResumed> {
    const vm = this.#enter(id, body.fence)
    return this.#once(vm, `resume ${body.fence}`, async (alive): Promise<HostVmResumed> => {
      if (vm.state !== 'paused' && vm.state !== 'dead') {
        throw new FakeHostFailure('wrong_state', `VM ${id} is ${vm.state}`)
      }
      const was = vm.state
      const generation = this.#pickGeneration(vm)
      this.#checkRoom(id, { ...vm.body, ip: body.ip })
      vm.state = 'resuming'
      try {
        await this.hooks.beforeResume?.(id, body)
        alive()
        if (vm.state !== 'resuming') throw new FakeHostFailure('wrong_state', `VM ${id} is ${vm.state}`)
      } catch (error) {
        if (alive.is() && vm.state === 'resuming') vm.state = was
        throw error
      }
      vm.network = new FakeNetwork(body.network)
      vm.state = 'running'
      delete vm.reason
      vm.body = { ...vm.body, ip: body.ip, envs: body.envs, hostname: body.hostname, ssh_pubkeys: body.ssh_pubkeys }
      vm.guest.envs = body.envs
      vm.guest.sshPubkeys = body.ssh_pubkeys
      await this.hooks.afterResume?.(id, body)
      if (generation === undefined) return { took_ms: 1, how: 'boot' }
      return { generation, saved_at: new Date().toISOString(), took_ms: 1, how: 'restore' }
    })
  }

  forkVm(id: string, body: HostVmForkBody): Promise<HostVmForked> {
    const vm = this.vms.get(id)
    if (!vm) throw new FakeHostFailure('not_found', `no VM ${id} here`)
    for (const child of body.children) this.#checkFence(child.id, child.fence, false)
    const key = `fork ${body.children.map((child) => `${child.id} ${child.fence}`).join()}`
    const work = async (alive: Alive): Promise<HostVmForked> => {
      if (vm.state !== 'running' && body.live) throw new FakeHostFailure('wrong_state', `VM ${id} is ${vm.state}`)
      const generation = body.live ? (vm.generations.at(-1) ?? 0) + 1 : (body.generation ?? vm.generations.at(-1))
      if (!body.live && (generation === undefined || !vm.generations.includes(generation))) {
        throw new FakeHostFailure('snapshot_missing', `VM ${id} has no generation ${generation}`)
      }
      await this.hooks.beforeFork?.(id, body)
      alive()
      for (const child of body.children) await this.#copy(vm, child)
      if (body.live) vm.generations = [...vm.generations.slice(-1), generation!]
      await this.hooks.afterFork?.(id, body)
      return { generation: 1, ...(body.live ? { stopped_ms: 1 } : {}) }
    }
    // A saved generation can be copied in any state; a live fork needs exclusive access.
    return this.#once(vm, key, work, body.live === true)
  }

  async putNetwork(id: string, body: HostVmNetworkBody): Promise<HostVmNetworkApplied> {
    await this.hooks.beforeNetwork?.(id, body)
    const vm = this.getRunningVm(id)
    if (body.fence < vm.fence) throw new FakeHostFailure('fence_lost', `${id}: ${vm.fence}`)
    return vm.network.put(body.network)
  }

  getNetwork = (id: string): HostVmNetworkReport => this.getRunningVm(id).network.report()

  listNetworks = (): HostNetworks => ({
    vms: [...this.vms.values()].map((vm) => vm.network.describe(vm.id, vm.state === 'running')),
  })

  async deleteVm(id: string, fence: number): Promise<object> {
    this.#checkFence(id, fence, false)
    await this.hooks.beforeDelete?.(id)
    const vm = this.vms.get(id)
    if (vm) endGuest(vm)
    this.vms.delete(id)
    await this.hooks.afterDelete?.(id)
    return {}
  }

  /** The QEMU process exits. */
  killVm(id: string, reason: string): void {
    const vm = this.vms.get(id)!
    Object.assign(vm, { state: 'dead', reason })
    endGuest(vm)
  }

  /** As if the host had been reinstalled. */
  loseVm(id: string): void {
    endGuest(this.vms.get(id)!)
    this.vms.delete(id)
  }

  /** Damages the newest generation. */
  damageVm(id: string): void {
    const vm = this.vms.get(id)!
    vm.damaged.add(vm.generations.at(-1)!)
  }

  /** Drops the operations of an agent that died: before its commit point an operation has no effect. */
  protected forgetOperations(): void {
    this.#life++
    for (const vm of this.vms.values()) {
      vm.done.clear()
      delete vm.doing
      vm.network.known = false
      if (vm.state === 'pausing') vm.state = 'running'
      if (vm.state === 'resuming') vm.state = vm.generations.length > 0 ? 'paused' : 'dead'
    }
  }

  protected getRunningVm(id: string): FakeVm {
    const vm = this.vms.get(id)
    if (!vm) throw new FakeHostFailure('not_found', `no VM ${id} here`)
    if (vm.state !== 'running') throw new FakeHostFailure('wrong_state', `VM ${id} is ${vm.state}`)
    return vm
  }

  #enter(id: string, fence: number): FakeVm {
    const vm = this.vms.get(id)
    this.#checkFence(id, fence, false)
    if (!vm) throw new FakeHostFailure('not_found', `no VM ${id} here`)
    vm.fence = fence
    return vm
  }

  async #once<Answer>(vm: FakeVm, key: string, work: (alive: Alive) => Promise<Answer>, alone = true): Promise<Answer> {
    const life = this.#life
    const alive = Object.assign(
      () => {
        if (life !== this.#life) throw new FakeHostFailure('internal', 'the agent died')
      },
      { is: () => life === this.#life },
    )
    const known = vm.done.get(key)
    if (known) return known as Promise<Answer>
    if (alone && vm.doing) {
      throw new FakeHostFailure('wrong_state', `VM ${vm.id} is ${vm.state}: ${vm.doing} is in progress`)
    }
    if (alone) vm.doing = key
    const under = work(alive).finally(() => {
      if (vm.doing === key) delete vm.doing
    })
    vm.done.set(key, under)
    under.catch(() => vm.done.delete(key))
    return under
  }

  #pickGeneration(vm: FakeVm): number | undefined {
    const newest = vm.generations.at(-1)
    if (newest === undefined && vm.state === 'dead') return undefined
    if (newest === undefined) throw new FakeHostFailure('snapshot_missing', 'there is no generation to start from')
    if (!vm.damaged.has(newest)) return newest
    vm.generations.pop()
    const next = vm.generations.at(-1)
    const offer = next === undefined ? 'no other is left' : `the next resume takes generation ${next}`
    throw new FakeHostFailure('snapshot_damaged', `generation ${newest} is damaged: ram.diff does not add up; ${offer}`)
  }

  async #copy(source: FakeVm, child: { id: string; fence: number }): Promise<void> {
    const root = await mkdtemp(path.join(this.folder, 'vm-'))
    await cp(source.guest.root, root, { recursive: true })
    // It has no address until it is first resumed.
    const vm = this.#newVm({ ...source.body, ...child, ip: '', network: HOST_NETWORK_DEFAULT }, 'paused', root)
    vm.generations = [1]
  }

  #newVm(body: HostVmCreateBody, state: HostVm['state'], root: string): FakeVm {
    const guest: FakeGuest = {
      root,
      envs: body.envs,
      sshPubkeys: body.ssh_pubkeys,
      commands: new Set(),
      processes: new Map(),
      journalBytes: PROCESS_JOURNAL_MAX_BYTES,
    }
    const { id, fence } = body
    const network = new FakeNetwork(body.network)
    const vm: FakeVm = { id, fence, state, body, guest, network, generations: [], damaged: new Set(), done: new Map() }
    this.vms.set(id, vm)
    return vm
  }

  /** A create whose VM was deleted with the same fence is too late as well. */
  #checkFence(id: string, fence: number, isNew: boolean): void {
    const seen = this.#fences.get(id) ?? 0
    if (fence < seen || (isNew && fence === seen)) throw new FakeHostFailure('fence_lost', `${id}: ${seen}`)
    this.#fences.set(id, fence)
  }

  #checkRoom(id: string, body: Pick<HostVmCreateBody, 'ip' | 'mem_mib'>): void {
    const others = [...this.vms.values()].filter((vm) => vm.id !== id)
    const taken = others.find((vm) => vm.body.ip === body.ip)
    if (taken) throw new FakeHostFailure('internal', `${body.ip} belongs to ${taken.id}`)
    const holders = others.filter((vm) => HOLDS_MEMORY.includes(vm.state))
    const used = holders.reduce((sum, vm) => sum + vm.body.mem_mib, 0)
    if (used + body.mem_mib > this.memMib)
      throw new FakeHostFailure('internal', 'the memory of this host is overcommitted')
  }
}

/** Throws when the agent has died meanwhile. */
type Alive = (() => void) & { is(): boolean }
