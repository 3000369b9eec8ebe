/**
 * The destinations that a sandbox reached within the last day, across pauses: a slot's flows go with the slot. They are
 * stored per VMM, so that one that is resumed from standby, with its slot, is not counted twice.
 */
import type { EgressFlow, HostVmNetworkReport } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import type { VmmRecord } from '../vmm/record.ts'
import type { SavedFlows } from './record.ts'

const DAY_MS = 24 * 60 * 60_000
const FLOWS_MAX = 1_000
/** If a sandbox had more VMMs within a day, the oldest two are added up and expire together. */
const VMMS_MAX = 8
/** The most used flows of one VMM: they are part of the record and written with it. */
const FLOWS_PER_VMM_MAX = 200

/** To be read before the slot is released. Undefined if there are none, or on failure, which must not fail the caller. */
export async function readFlows(
  deps: Deps,
  sandbox: string,
  { id, slot, resources }: VmmRecord,
): Promise<SavedFlows | undefined> {
  if (resources !== 'held') return undefined
  try {
    const flows = (await deps.network.slots.flows(slot)).slice(0, FLOWS_PER_VMM_MAX)
    return flows.length === 0 ? undefined : { vmm: id, at: Date.now(), flows }
  } catch (error) {
    deps.log.warn({ err: error, sandbox }, 'failed to read the destinations that a sandbox reached')
    return undefined
  }
}

export function addFlows(saved: readonly SavedFlows[], more: SavedFlows): SavedFlows[] {
  const recent = saved.filter(({ vmm, at }) => vmm !== more.vmm && more.at - at < DAY_MS)
  const all = [...recent, more]
  if (all.length <= VMMS_MAX) return all
  const [oldest, next, ...rest] = all as [SavedFlows, SavedFlows, ...SavedFlows[]]
  return [{ ...next, flows: sum([...oldest.flows, ...next.flows]).slice(0, FLOWS_PER_VMM_MAX) }, ...rest]
}

/** The report of the current VMM's slot, with the flows of the VMMs before it. */
export function withFlows(
  report: HostVmNetworkReport,
  saved: readonly SavedFlows[],
  vmm: string,
  now = Date.now(),
): HostVmNetworkReport {
  const before = saved.filter((one) => one.vmm !== vmm && now - one.at < DAY_MS).flatMap((one) => one.flows)
  return before.length === 0 ? report : { ...report, flows: sum([...report.flows, ...before]) }
}

/** One flow per destination, the most used first. */
function sum(flows: readonly EgressFlow[]): EgressFlow[] {
  const byDestination = new Map<string, EgressFlow>()
  for (const flow of flows) {
    const key = `${flow.destination} ${flow.protocol} ${flow.port}`
    byDestination.set(key, { ...flow, count: flow.count + (byDestination.get(key)?.count ?? 0) })
  }
  return [...byDestination.values()].sort((one, other) => other.count - one.count).slice(0, FLOWS_MAX)
}
