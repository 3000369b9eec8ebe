/** The sandboxes of this host and the operations on them. Each verb has its own file; entries.ts keeps them apart. */
import type { Socket } from 'node:net'
import type {
  HostMounts,
  HostNetworks,
  HostVm,
  HostVmCreateBody,
  HostVmCreated,
  HostVmForkBody,
  HostVmForked,
  HostVmMountsApplied,
  HostVmMountsBody,
  HostVmMountsReport,
  HostVmNetworkApplied,
  HostVmNetworkBody,
  HostVmNetworkReport,
  HostVmPauseBody,
  HostVmPaused,
  HostVmResizeBody,
  HostVmResized,
  HostVmResumeBody,
  HostVmResumed,
} from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import { measureOperation } from '../observe/metrics.ts'
import type { Vmm } from '../vmm/vmm.ts'
import { adoptAll } from './adopt.ts'
import { connectToVm } from './connect.ts'
import { listCounts } from './counts.ts'
import { createVm } from './create.ts'
import { deleteVm } from './delete.ts'
import { checkFence, Entries, type Entry, getLive, type LiveVm, wrongState } from './entries.ts'
import { withFlows } from './flows.ts'
import { forkVm } from './fork.ts'
import { pauseVm } from './pause.ts'
import { toStored, type VmRecord } from './record.ts'
import { resizeVm } from './resize.ts'
import { resumeVm } from './resume.ts'

export type RunningSandbox = { id: string; vmm: Vmm; diskMib: number }

export class Vms {
  readonly #deps: Deps
  readonly #entries = new Entries()

  constructor(deps: Deps) {
    this.#deps = deps
  }

  list(): HostVm[] {
    const vms = this.#entries
      .list()
      .map((entry) => renderVm(entry, this.#deps.snapshots.findNewestIntact(entry.id)?.generation))
    return [...vms, ...[...this.#entries.unreadable].map(renderUnreadable)]
  }

  records(): VmRecord[] {
    return this.#entries.list().map((entry) => entry.record)
  }

  /** While this is true, VMMs of unknown sandboxes may exist (adopt.ts). */
  get hasUnreadable(): boolean {
    return this.#entries.unreadable.size > 0
  }

  listRunning(): RunningSandbox[] {
    return this.#entries.list().flatMap((entry) => toRunning(entry) ?? [])
  }

  findRunning(id: string): RunningSandbox | undefined {
    const entry = this.#entries.find(id)
    return entry && toRunning(entry)
  }

  getRunning(id: string): RunningSandbox {
    const entry = this.#entries.get(id)
    const running = toRunning(entry)
    if (!running) throw wrongState(entry.record, 'running')
    return running
  }

  /** Throws unless the sandbox is on this host, in whatever state. */
  check(id: string): void {
    this.#entries.get(id)
  }

  /** The VMM of a running sandbox. */
  get(id: string): Vmm {
    const { record, live } = this.#entries.get(id)
    if (!live || record.state !== 'running') throw new HostError('guest_unreachable', `${id} is ${record.state}`)
    return live.vmm
  }

  /** To be called once, before any other operation. */
  adoptAll() {
    return adoptAll(this.#deps, this.#entries)
  }

  /** Settles when the operations that are under way have ended, and paused VMMs are on standby. */
  async untilIdle(): Promise<void> {
    await Promise.allSettled(
      this.#entries.list().flatMap(({ operation, standbyReady }) => [operation?.done, standbyReady]),
    )
  }

  create(request: HostVmCreateBody, callerDisconnected: AbortSignal): Promise<HostVmCreated> {
    return this.#measure('create', () => createVm(this.#deps, this.#entries, request, callerDisconnected))
  }

  async pause(id: string, request: HostVmPauseBody): Promise<HostVmPaused> {
    return this.#measure('pause', () => pauseVm(this.#deps, this.#entries.get(id), request))
  }

  async resume(id: string, request: HostVmResumeBody): Promise<HostVmResumed> {
    return this.#measure('resume', () => resumeVm(this.#deps, this.#entries.get(id), request))
  }

  async fork(id: string, request: HostVmForkBody): Promise<HostVmForked> {
    return this.#measure('fork', () => forkVm(this.#deps, this.#entries, this.#entries.get(id), request))
  }

  async resize(id: string, request: HostVmResizeBody): Promise<HostVmResized> {
    return this.#measure('resize', () => resizeVm(this.#deps, this.#entries.get(id), request))
  }

  delete(id: string, fence: number): Promise<void> {
    return deleteVm(this.#deps, this.#entries, id, fence)
  }

  /** Changes of one slot are applied one after the other (net/slots.ts). Needs the fence of the last operation. */
  async changeNetwork(id: string, { fence, network }: HostVmNetworkBody): Promise<HostVmNetworkApplied> {
    const entry = this.#entries.get(id)
    checkFence(entry.record, fence)
    const live = getLive(entry)
    const applied = await this.#deps.network.slots.change(live.vmm.record.slot, network)
    live.networkRevision = applied.revision
    return applied
  }

  async reportNetwork(id: string): Promise<HostVmNetworkReport> {
    const entry = this.#entries.get(id)
    const { vmm } = getLive(entry)
    const report = await this.#deps.network.slots.report(vmm.record.slot)
    return withFlows(report, toStored(entry.record)?.flows ?? [], vmm.record.id)
  }

  async listNetworks(): Promise<HostNetworks> {
    return { vms: await listCounts(this.#deps, this.#entries.list()) }
  }

  /** Needs the fence of the last operation. */
  async setMounts(id: string, { fence, revision, mounts }: HostVmMountsBody): Promise<HostVmMountsApplied> {
    const entry = this.#entries.get(id)
    checkFence(entry.record, fence)
    const live = getLive(entry)
    if (live.mounts) return live.mounts.set({ revision, mounts })
    if (mounts.length > 0) throw new HostError('disks_unavailable', 'this host cannot mount disks')
    return { revision, mounts: [], removed: [] }
  }

  reportMounts(id: string): HostVmMountsReport {
    return reportMountsOf(getLive(this.#entries.get(id)))
  }

  listMounts(): HostMounts {
    const running = this.#entries.list().filter(({ live, record }) => live && record.state === 'running')
    return { vms: running.map((entry) => ({ id: entry.id, ...reportMountsOf(getLive(entry)) })) }
  }

  #measure<Response extends object>(operation: Parameters<typeof measureOperation>[1], work: () => Promise<Response>) {
    return this.#deps.activity.run(() => measureOperation(this.#deps.metrics, operation, work))
  }

  async connect(id: string, port: number, signal: AbortSignal): Promise<Socket> {
    return connectToVm(this.#entries.get(id), port, signal)
  }
}

function toRunning({ id, record, live }: Entry): RunningSandbox | undefined {
  return live && record.state === 'running' ? { id, vmm: live.vmm, diskMib: record.diskMib } : undefined
}

/** Revision 0: a host that cannot mount disks is asked for every mount once, and refuses it. */
const reportMountsOf = ({ mounts }: LiveVm): HostVmMountsReport => mounts?.report() ?? { revision: 0, mounts: [] }

function renderVm({ record, live }: Entry, generation: number | undefined): HostVm {
  const { id, fence, state } = record
  const stored = toStored(record)
  const reason = stored?.state === 'dead' ? stored.reason : undefined
  const signal = stored && stored.state !== 'paused' ? stored.signal : null
  return {
    ...{ id, fence, state },
    ...(stored ? { disk_mib: stored.diskMib } : {}),
    ...(stored?.growPending ? { grow_pending: true } : {}),
    ...(live?.vmm.waitsForDisk ? { waits_for_disk: true } : {}),
    ...(reason === undefined ? {} : { reason }),
    ...(generation === undefined ? {} : { generation }),
    ...(signal === null ? {} : { signal }),
  }
}

/** Dead rather than absent: of an absent sandbox the control plane would conclude that all of it is lost. */
function renderUnreadable([id, why]: [string, string]): HostVm {
  return { id, fence: 0, state: 'dead', reason: `its record cannot be read: ${why}` }
}
