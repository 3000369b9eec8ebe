/** The sampler of this host, with the kernel, netd and the guests as its sources. */
import { withTimeout } from '@warren/kit/timeout'
import { GUEST_ROUTES, GuestMetrics } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { callGuest } from '../guest/call-guest.ts'
import { findResidentBytes } from '../vmm/process.ts'
import type { Vmm } from '../vmm/vmm.ts'
import type { RunningSandbox, Vms } from '../vms/vms.ts'
import { type GuestReading, type SampledVm, Sampler } from './sampler.ts'

/** Less than a step, so that a guest is never asked twice at once. */
const ASK_LIMIT_MS = 5_000
/** The control plane asks for the counters every 2 s. If it is down, they are read for the samples. */
const COUNTS_MAX_AGE_MS = 5_000

export type HostSampler = Sampler<RunningVm>
type RunningVm = SampledVm & { vmm: Vmm }

export const createSampler = (deps: Deps, vms: Pick<Vms, 'listRunning' | 'findRunning'>): HostSampler =>
  new Sampler<RunningVm>({
    listVms: () => vms.listRunning().map(toSampled),
    findVm(id) {
      const found = vms.findRunning(id)
      return found && toSampled(found)
    },
    readCpuNs: ({ vmmId }) => deps.cgroups.readCpuNs(vmmId),
    findResidentBytes: ({ vmm }) => findResidentBytes(vmm.record.qemu),
    async readNetwork(slots) {
      const found = await deps.network.slots.recentUsage(slots, COUNTS_MAX_AGE_MS)
      return new Map(
        [...found].map(([slot, { atMs, usage }]) => [
          slot,
          { atMs, sentBytes: usage.used_bytes, receivedBytes: usage.ingress_bytes },
        ]),
      )
    },
    askGuest: ({ vmm }) => withTimeout(ASK_LIMIT_MS, askGuest(vmm), 'asking the guest what it uses'),
    rings: deps.rings,
    log: deps.log,
    now: Date.now,
    monotonicMs: () => performance.now(),
  })

export const toSampled = ({ id, vmm, diskMib }: RunningSandbox): RunningVm => ({
  ...{ id, vmm, diskMib },
  ...{ vmmId: vmm.record.id, slot: vmm.record.slot, memMib: vmm.record.shape.mem_mib },
})

async function askGuest(vmm: Vmm): Promise<GuestReading> {
  const { session } = await vmm.channel()
  const { method, path } = GUEST_ROUTES.getMetrics
  const limit = AbortSignal.timeout(ASK_LIMIT_MS)
  const { memory, root } = await callGuest(session, { method, path, response: GuestMetrics }, limit)
  return { memoryUsedBytes: memory.total_bytes - memory.available_bytes, storageUsedBytes: root.used_bytes }
}
