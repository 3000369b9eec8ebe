/**
 * The VMs of the fake host. They go through the states of real ones: a lower fence is refused, also for a VM that no
 * longer exists, and an operation is done once per fence. A pause that fails leaves the VM running; a resume that fails
 * leaves it as it was. Generations are numbered and can be damaged. A fork gets a copy of the guest's files.
 *
 * Hooks are awaited: an error that a hook throws is the response, and a hook that never resolves hangs the request.
 */
import { cp, mkdir, mkdtemp, readdir, rm } from 'node:fs/promises'
import path from 'node:path'
import {
  HOST_NETWORK_DEFAULT,
  type HostBase,
  type HostBaseBody,
  type HostBasePrepared,
  type HostImage,
  type HostMounts,
  type HostNetworks,
  type HostVm,
  type HostVmCreateBody,
  type HostVmForkBody,
  type HostVmForked,
  type HostVmMetrics,
  type HostVmMountsApplied,
  type HostVmMountsBody,
  type HostVmMountsReport,
  type HostVmNetworkApplied,
  type HostVmNetworkBody,
  type HostVmNetworkReport,
  type HostVmPauseBody,
  type HostVmPaused,
  type HostVmResizeBody,
  type HostVmResized,
  type HostVmResumeBody,
  type HostVmResumed,
  type HostVmSeries,
  PROCESS_JOURNAL_MAX_BYTES,
} from '@warren/protocol'
import type { FakeGuest } from './fake-guest.ts'
import { FakeMetrics } from './fake-metrics.ts'
import { FakeMounts } from './fake-mounts.ts'
import { FakeNetwork } from './fake-network.ts'
import { endCommands, endGuest, FakeHostFailure, type FakeVm, type VmHooks } from './fake-vm.ts'

/** A larger disk grows from a base of this size. */
const BASE_DISK_MAX_MIB = 10_240
const HOLDS_MEMORY: HostVm['state'][] = ['creating', 'running', 'pausing', 'resuming']

export class FakeVms {
  readonly vms = new Map<string, FakeVm>()
  hooks: VmHooks = {}
  images: HostImage[]
  memMib: number
  /** Whether disks can be mounted here. */
  disks = true
  protected readonly folder: string
  /** The fences of deleted VMs: a create that arrives late must not bring them back. */
  readonly #tombstones = new Map<string, number>()
  readonly #bases = new Map<string, HostBase>()
  /** Incremented when the agent dies, which cancels its operations. */
  #incarnation = 0

  constructor(folder: string, options: { memMib: number; images: HostImage[] }) {
    this.folder = folder
    this.memMib = options.memMib
    this.images = options.images
  }

  listVms(): HostVm[] {
    return [...this.vms.values()].map(
      ({ id, fence, state, reason, generations, signal, body, growPending, waitsForDisk }) => ({
        id,
        fence,
        state,
        ...(state === 'creating' ? {} : { disk_mib: body.disk_mib }),
        ...(growPending ? { grow_pending: true } : {}),
        ...(waitsForDisk ? { waits_for_disk: true } : {}),
        ...(reason === undefined ? {} : { reason }),
        ...(generations.length === 0 ? {} : { generation: generations.at(-1)! }),
        ...(signal === undefined ? {} : { signal }),
      }),
    )
  }

  /** `cancelled` rejects when the caller disconnects or the time is up. Unlike other operations, a create is undone then. */
  async createVm(body: HostVmCreateBody, cancelled: Promise<never>): Promise<{ spawn_ms: number; how: 'clone' }> {
    this.#checkNew(body)
    this.#checkImage(body)
    this.#checkRoom(body.id, body)
    const root = await mkdtemp(path.join(this.folder, 'vm-'))
    await mkdir(path.join(root, 'root'))
    const vm = this.#newVm(body, 'creating', root)
    const unlessCancelled = <T>(work: T) => Promise.race([work, cancelled])
    try {
      await unlessCancelled(this.hooks.beforeCreate?.(body))
      if (this.vms.get(body.id) !== vm) throw new FakeHostFailure('fence_lost', 'deleted during the create')
      vm.state = 'running'
      if (this.disks) vm.mounts = new FakeMounts(vm.id, () => this.hooks, body.mounts)
      this.prepareBase(body)
      await unlessCancelled(this.hooks.afterCreate?.(body))
      return { spawn_ms: 12.5, how: 'clone' }
    } catch (error) {
      if (this.vms.get(body.id) === vm) this.vms.delete(body.id)
      throw error
    }
  }

  listBases(): HostBase[] {
    return [...this.#bases.values()]
  }

  prepareBase({ image, vcpu, mem_mib, disk_mib }: HostBaseBody): HostBasePrepared {
    this.#checkImage({ image, disk_mib })
    if (mem_mib > this.memMib) throw new FakeHostFailure('no_capacity', `the host has ${this.memMib} MiB`)
    const base = { image, vcpu, mem_mib, disk_mib: Math.min(disk_mib, BASE_DISK_MAX_MIB) }
    const key = Object.values(base).join(' ')
    const booted = !this.#bases.has(key)
    const made_at = new Date().toISOString()
    if (booted) this.#bases.set(key, { key, ...base, state: 'ready', size_bytes: 1, vms: 0, made_at })
    return { key, booted, took_ms: 1 }
  }

  #checkImage({ image: name, disk_mib }: { image: string; disk_mib: number }): void {
    const image = this.images.find((one) => one.name === name && one.state === 'ready')
    if (!image) throw new FakeHostFailure('image_not_ready', name)
    if (disk_mib < (image.min_disk_mib ?? 0)) throw new FakeHostFailure('disk_too_small', name)
  }

  async pauseVm(id: string, { fence }: HostVmPauseBody): Promise<HostVmPaused> {
    const vm = this.#get(id, fence)
    while (isUnderWay(vm, ['resize'])) await vm.done.get(vm.operation!)?.catch(() => {})
    this.#get(id, fence)
    return this.#runOnce(vm, `pause ${fence}`, async (alive) => {
      // The caller of the earlier pause never received the response.
      if (vm.state === 'paused') {
        vm.fence = fence
        return describePaused(vm)
      }
      if (vm.state !== 'running') throw new FakeHostFailure('wrong_state', `VM ${id} is ${vm.state}`)
      vm.fence = fence
      vm.state = 'pausing'
      const generation = (vm.generations.at(-1) ?? 0) + 1
      try {
        await this.hooks.beforePause?.(id)
        await cp(vm.guest.root, savedFolder(vm, generation), { recursive: true })
        alive()
        if (vm.state !== 'pausing') throw new FakeHostFailure('wrong_state', `VM ${id} is ${vm.state}`)
      } catch (error) {
        if (alive.is() && vm.state === 'pausing') vm.state = 'running'
        throw error
      }
      // The previous generation is retained until this one is proven.
      vm.generations = [...vm.generations.slice(-1), generation]
      vm.state = 'paused'
      const unsaved = vm.mounts.listUnsaved()
      vm.mounts.forget()
      delete vm.signal
      endCommands(vm)
      await this.hooks.afterPause?.(id)
      return { ...describePaused(vm), ...(unsaved.length > 0 && { unsaved_mounts: unsaved }) }
    })
  }

  async resumeVm(id: string, body: HostVmResumeBody): Promise<HostVmResumed> {
    const vm = this.#get(id, body.fence)
    return this.#runOnce(vm, `resume ${body.fence}`, async (alive): Promise<HostVmResumed> => {
      if (vm.state !== 'paused' && vm.state !== 'dead') {
        throw new FakeHostFailure('wrong_state', `VM ${id} is ${vm.state}`)
      }
      vm.fence = body.fence
      const previousState = vm.state
      const generation = this.#pickGeneration(vm)
      this.#checkRoom(id, { ...vm.body, ip: body.ip })
      vm.state = 'resuming'
      try {
        await this.hooks.beforeResume?.(id, body)
        if (generation !== undefined) await this.#restoreFiles(vm, generation)
        alive()
        if (vm.state !== 'resuming') throw new FakeHostFailure('wrong_state', `VM ${id} is ${vm.state}`)
      } catch (error) {
        if (alive.is() && vm.state === 'resuming') vm.state = previousState
        throw error
      }
      vm.network = new FakeNetwork(body.network, vm.network)
      if (this.disks) vm.mounts = new FakeMounts(id, () => this.hooks, body.mounts)
      vm.hasRun = true
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

  async forkVm(id: string, body: HostVmForkBody): Promise<HostVmForked> {
    const vm = this.#get(id)
    const key = `fork ${body.children.map((child) => `${child.id} ${child.fence}`).join()}`
    const underWay = vm.done.get(key)
    if (underWay) return underWay as Promise<HostVmForked>
    while (body.live && isUnderWay(vm, ['fork', 'resize'])) await vm.done.get(vm.operation!)?.catch(() => {})
    const missing = body.children.filter((child) => !((this.vms.get(child.id)?.fence ?? 0) >= child.fence))
    if (missing.length === 0) return { generation: 1 }
    for (const child of missing) this.#checkNew(child)
    const work = async (alive: Alive): Promise<HostVmForked> => {
      if (vm.state !== 'running' && body.live) throw new FakeHostFailure('wrong_state', `VM ${id} is ${vm.state}`)
      const generation = body.generation ?? vm.generations.at(-1)
      if (!body.live && (generation === undefined || !vm.generations.includes(generation))) {
        throw new FakeHostFailure('snapshot_missing', `VM ${id} has no generation ${generation}`)
      }
      await this.hooks.beforeFork?.(id, body)
      alive()
      const files = body.live ? vm.guest.root : savedFolder(vm, generation!)
      for (const child of missing) await this.#addChild(vm, files, child)
      await this.hooks.afterFork?.(id, body)
      return { generation: 1, ...(body.live ? { stopped_ms: 1 } : {}) }
    }
    // A saved generation can be copied in any state; a live fork needs the VM to be stopped.
    return this.#runOnce(vm, key, work, body.live === true).finally(() => vm.done.delete(key))
  }

  async resizeVm(id: string, body: HostVmResizeBody): Promise<HostVmResized> {
    const vm = this.#get(id, body.fence)
    while (isUnderWay(vm, ['fork', 'resize'])) await vm.done.get(vm.operation!)?.catch(() => {})
    this.#get(id, body.fence)
    this.getRunningVm(id)
    const key = `resize ${body.fence} ${body.disk_mib}`
    const work = async (alive: Alive): Promise<HostVmResized> => {
      await this.hooks.beforeResize?.(id, body)
      alive()
      if (vm.state !== 'running') throw new FakeHostFailure('wrong_state', `VM ${id} is ${vm.state}`)
      vm.body = { ...vm.body, disk_mib: Math.max(vm.body.disk_mib, body.disk_mib) }
      vm.growPending = false
      await this.hooks.afterResize?.(id, body)
      return { disk_mib: vm.body.disk_mib }
    }
    return this.#runOnce(vm, key, work).finally(() => vm.done.delete(key))
  }

  async putNetwork(id: string, body: HostVmNetworkBody): Promise<HostVmNetworkApplied> {
    await this.hooks.beforeNetwork?.(id, body)
    this.#get(id, body.fence)
    return this.getRunningVm(id).network.put(body.network)
  }

  async setMounts(id: string, body: HostVmMountsBody): Promise<HostVmMountsApplied> {
    await this.hooks.beforeMounts?.(id, body)
    this.#get(id, body.fence)
    const { mounts } = this.getRunningVm(id)
    if (!this.disks && body.mounts.length > 0) {
      throw new FakeHostFailure('disks_unavailable', 'this host cannot mount disks')
    }
    const applied = await mounts.set(body)
    await this.hooks.afterMounts?.(id, body)
    return applied
  }

  getMounts = (id: string): HostVmMountsReport => this.getRunningVm(id).mounts.report()

  listMounts = (): HostMounts => ({
    vms: [...this.vms.values()]
      .filter(({ state }) => state === 'running')
      .map(({ id, mounts }) => ({ id, ...mounts.report() })),
  })

  getNetwork = (id: string): HostVmNetworkReport => this.getRunningVm(id).network.report()

  getVmMetrics = (id: string): HostVmMetrics => this.getRunningVm(id).metrics.measure()

  getVmSeries(id: string): HostVmSeries {
    const vm = this.#get(id)
    return vm.metrics.getSeries(vm.state === 'running')
  }

  listNetworks = (): HostNetworks => ({
    vms: [...this.vms.values()]
      .filter((vm) => vm.hasRun)
      .map((vm) => vm.network.describe(vm.id, vm.state === 'running')),
  })

  async deleteVm(id: string, fence: number): Promise<object> {
    if (this.vms.has(id)) this.#get(id, fence).fence = fence
    this.#tombstones.set(id, Math.max(fence, this.#tombstones.get(id) ?? 0))
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
    vm.mounts.forget()
    endGuest(vm)
  }

  /** The host no longer knows the VM, as after a reinstallation. */
  loseVm(id: string): void {
    endGuest(this.vms.get(id)!)
    this.vms.delete(id)
  }

  /** Corrupts the newest generation. */
  damageVm(id: string): void {
    const vm = this.vms.get(id)!
    vm.damaged.add(vm.generations.at(-1)!)
  }

  /** Operations that had not reached their commit point when the agent died have no effect. */
  protected dropOperations(): void {
    this.#incarnation++
    for (const vm of this.vms.values()) {
      vm.done.clear()
      delete vm.operation
      vm.network.known = false
      vm.mounts.forget()
      if (vm.state === 'pausing') vm.state = 'running'
      if (vm.state === 'resuming') vm.state = vm.generations.length > 0 ? 'paused' : 'dead'
    }
  }

  protected getRunningVm(id: string): FakeVm {
    const vm = this.#get(id)
    if (vm.state !== 'running') throw new FakeHostFailure('wrong_state', `VM ${id} is ${vm.state}`)
    return vm
  }

  /** With a fence, for an operation. It raises the fence of the VM only when the state of the VM allows it. */
  #get(id: string, fence?: number): FakeVm {
    const vm = this.vms.get(id)
    if (!vm) throw new FakeHostFailure('not_found', `no VM ${id} here`)
    if (fence !== undefined && fence < vm.fence) throw new FakeHostFailure('fence_lost', `${id}: ${vm.fence}`)
    return vm
  }

  async #runOnce<Result>(
    vm: FakeVm,
    key: string,
    work: (alive: Alive) => Promise<Result>,
    exclusive = true,
  ): Promise<Result> {
    const incarnation = this.#incarnation
    const alive = Object.assign(
      () => {
        if (incarnation !== this.#incarnation) throw new FakeHostFailure('internal', 'the agent died')
      },
      { is: () => incarnation === this.#incarnation },
    )
    const repeated = vm.done.get(key)
    if (repeated) return repeated as Promise<Result>
    if (exclusive && vm.operation) {
      throw new FakeHostFailure('wrong_state', `VM ${vm.id} is ${vm.state}: ${vm.operation} is in progress`)
    }
    if (exclusive) vm.operation = key
    const result = work(alive).finally(() => {
      if (vm.operation === key) delete vm.operation
    })
    vm.done.set(key, result)
    result.catch(() => vm.done.delete(key))
    return result
  }

  #pickGeneration(vm: FakeVm): number | undefined {
    const newest = vm.generations.at(-1)
    if (newest === undefined && vm.state === 'dead') return undefined
    if (newest === undefined) throw new FakeHostFailure('snapshot_missing', 'there is no generation to start from')
    if (!vm.damaged.has(newest)) return newest
    vm.generations.pop()
    const next = vm.generations.at(-1)
    const offer = next === undefined ? 'there is no other generation' : `the next resume uses generation ${next}`
    throw new FakeHostFailure(
      'snapshot_damaged',
      `generation ${newest} is damaged: the checksum of ram.diff does not match; ${offer}`,
    )
  }

  async #restoreFiles(vm: FakeVm, generation: number): Promise<void> {
    const { root } = vm.guest
    for (const name of await readdir(root)) await rm(path.join(root, name), { recursive: true })
    await cp(savedFolder(vm, generation), root, { recursive: true })
  }

  async #addChild(source: FakeVm, files: string, child: { id: string; fence: number }): Promise<void> {
    const root = await mkdtemp(path.join(this.folder, 'vm-'))
    await cp(files, root, { recursive: true })
    // A fork has no address before it is first resumed.
    const vm = this.#newVm({ ...source.body, ...child, ip: '', network: HOST_NETWORK_DEFAULT }, 'paused', root)
    await cp(files, savedFolder(vm, 1), { recursive: true })
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
    const mounts = new FakeMounts(id, () => this.hooks)
    const vm: FakeVm = {
      ...{ id, fence, state, body, guest, network, mounts, hasRun: state === 'creating' },
      ...{ metrics: new FakeMetrics(), generations: [], damaged: new Set(), done: new Map() },
    }
    this.vms.set(id, vm)
    return vm
  }

  #checkNew({ id, fence }: { id: string; fence: number }): void {
    if (this.vms.has(id)) throw new FakeHostFailure('fence_lost', `${id} exists already`)
    const seen = this.#tombstones.get(id) ?? 0
    if (fence <= seen) throw new FakeHostFailure('fence_lost', `${id} was deleted with fence ${seen}`)
  }

  /** A real host does not count memory: that the control plane reserves no more than there is, is checked only here. */
  #checkRoom(id: string, body: Pick<HostVmCreateBody, 'ip' | 'mem_mib'>): void {
    const others = [...this.vms.values()].filter((vm) => vm.id !== id)
    const taken = others.find((vm) => vm.body.ip === body.ip)
    if (taken) throw new FakeHostFailure('boot_failed', `${body.ip} belongs to ${taken.id}`)
    const holders = others.filter((vm) => HOLDS_MEMORY.includes(vm.state))
    const used = holders.reduce((sum, vm) => sum + vm.body.mem_mib, 0)
    if (used + body.mem_mib > this.memMib) throw new FakeHostFailure('internal', 'not enough memory on this host')
  }
}

const isUnderWay = ({ operation }: FakeVm, names: string[]): boolean =>
  names.some((name) => operation?.startsWith(`${name} `))

/** The files of a guest as they were when that generation was saved. */
const savedFolder = ({ guest }: FakeVm, generation: number): string => `${guest.root}.generation-${generation}`

function describePaused({ generations, network }: FakeVm): HostVmPaused {
  const counts = { used_bytes: network.usedBytes, ingress_bytes: network.ingressBytes }
  return { generation: generations.at(-1)!, took_ms: 1, dirty_bytes: 0, written_bytes: 0, counts }
}

/** Throws if the agent has died since the operation began; `is` returns whether it is alive. */
type Alive = (() => void) & { is(): boolean }
