/** What the sandboxes of this host sent and received, also over the ends of their bodies. */
import type { HostCounts, HostNetworks, HostVmNetwork } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import type { Vmm, VmmRecord } from '../vmm/vmm.ts'
import type { VmRecord } from './registry.ts'

type Counted = { record: VmRecord; body?: Vmm; revision?: number }

/** Before its slot is released: the counters go with it. A pause or an end does not fail for their sake. */
export async function saveCounts(deps: Deps, record: VmRecord, { slot, slotGone, released }: VmmRecord): Promise<void> {
  if (released || slotGone) return
  try {
    const usage = (await deps.network.slots.usage([slot])).get(slot)
    if (usage) record.counts = { used_bytes: usage.used_bytes, ingress_bytes: usage.ingress_bytes }
  } catch (error) {
    deps.log.warn({ err: error, sandbox: record.id }, 'could not read what a sandbox sent; the last count stays')
  }
}

/** Counting never goes back: the control plane may not have heard the last count. */
export function withCounts(network: HostVmNetwork, { counts }: VmRecord): HostVmNetwork {
  if (!counts) return network
  const { bandwidth } = network
  return {
    ...network,
    bandwidth: {
      ...bandwidth,
      used_bytes: Math.max(bandwidth.used_bytes, counts.used_bytes),
      ingress_bytes: Math.max(bandwidth.ingress_bytes, counts.ingress_bytes),
    },
  }
}

export async function countAll(deps: Deps, entries: readonly Counted[]): Promise<HostNetworks['vms']> {
  const slots = entries.flatMap(({ body }) => (body ? [body.record.slot] : []))
  const usage = slots.length === 0 ? new Map<number, HostCounts>() : await deps.network.slots.usage(slots)
  return entries.flatMap(({ record, body, revision }) => {
    const counts = (body && usage.get(body.record.slot)) ?? record.counts
    if (!counts) return []
    const { used_bytes, ingress_bytes } = counts
    return [{ id: record.id, used_bytes, ingress_bytes, ...(revision === undefined ? {} : { revision }) }]
  })
}
