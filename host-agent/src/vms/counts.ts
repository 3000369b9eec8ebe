/** The bytes that the sandboxes of this host sent and received, across pauses: a slot's counters go with the slot. */
import type { HostCounts, HostNetworks, HostVmNetwork } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import type { VmmRecord } from '../vmm/record.ts'
import type { Entry } from './entries.ts'
import { toStored } from './record.ts'

/** To be read before the slot is released. Undefined on failure, which must not fail the pause or cleanup around it. */
export async function readCounts(
  deps: Deps,
  sandbox: string,
  { slot, resources }: VmmRecord,
): Promise<HostCounts | undefined> {
  if (resources !== 'held') return undefined
  try {
    const usage = (await deps.network.slots.usage([slot])).get(slot)
    return usage && { used_bytes: usage.used_bytes, ingress_bytes: usage.ingress_bytes }
  } catch (error) {
    deps.log.warn({ err: error, sandbox }, 'failed to read the network counters of a sandbox; the last values stay')
    return undefined
  }
}

/** Counters never go back: the control plane may not have received the last values yet. */
export function withCounts(network: HostVmNetwork, counts: HostCounts | null): HostVmNetwork {
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

export async function listCounts(deps: Deps, entries: readonly Entry[]): Promise<HostNetworks['vms']> {
  const slots = entries.flatMap(({ live }) => (live ? [live.vmm.record.slot] : []))
  const usage = slots.length === 0 ? new Map<number, HostCounts>() : await deps.network.slots.usage(slots)
  return entries.flatMap(({ id, record, live }) => {
    const counts = (live && usage.get(live.vmm.record.slot)) ?? toStored(record)?.counts
    if (!counts) return []
    const revision = live?.networkRevision
    const { used_bytes, ingress_bytes } = counts
    return [{ id, used_bytes, ingress_bytes, ...(revision === undefined ? {} : { revision }) }]
  })
}
