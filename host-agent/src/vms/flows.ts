/**
 * The destinations that a sandbox reached or was refused within the last day, across pauses: what a slot recorded goes with
 * the slot. It is stored per VMM, so that one that is resumed from standby, with its slot, is not counted twice.
 */
import type { EgressDecision, EgressFlow, HostVmNetworkReport } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import type { VmmRecord } from '../vmm/record.ts'
import type { SavedFlows } from './record.ts'

const DAY_MS = 24 * 60 * 60_000
const FLOWS_MAX = 1_000
const DECISIONS_MAX = 200
/** If a sandbox had more VMMs within a day, the oldest two are added up and expire together. */
const VMMS_MAX = 8
/** The most used flows and the newest decisions of one VMM: they are part of the record and written with it. */
const FLOWS_PER_VMM_MAX = 200
const DECISIONS_PER_VMM_MAX = 100

/** To be read before the slot is released. Undefined if there are none, or on failure, which must not fail the caller. */
export async function readFlows(
  deps: Deps,
  sandbox: string,
  { id, slot, resources }: VmmRecord,
): Promise<SavedFlows | undefined> {
  if (resources !== 'held') return undefined
  try {
    const seen = await deps.network.slots.destinations(slot)
    if (seen.flows.length === 0 && seen.decisions.length === 0) return undefined
    return limited({ vmm: id, at: Date.now(), ...seen })
  } catch (error) {
    deps.log.warn({ err: error, sandbox }, 'failed to read the destinations that a sandbox reached or was refused')
    return undefined
  }
}

export function addFlows(saved: readonly SavedFlows[], more: SavedFlows): SavedFlows[] {
  const recent = saved.filter(({ vmm, at }) => vmm !== more.vmm && more.at - at < DAY_MS)
  const all = [...recent, more]
  if (all.length <= VMMS_MAX) return all
  const [oldest, next, ...rest] = all as [SavedFlows, SavedFlows, ...SavedFlows[]]
  const flows = sum([...oldest.flows, ...next.flows])
  const decisions = sumDecisions([...(oldest.decisions ?? []), ...(next.decisions ?? [])])
  return [limited({ ...next, flows, decisions }), ...rest]
}

const limited = ({ flows, decisions = [], ...rest }: SavedFlows): SavedFlows => ({
  ...rest,
  flows: flows.slice(0, FLOWS_PER_VMM_MAX),
  decisions: decisions.slice(0, DECISIONS_PER_VMM_MAX),
})

/** The report of the current VMM's slot, with the flows and decisions of the VMMs before it. */
export function withFlows(
  report: HostVmNetworkReport,
  saved: readonly SavedFlows[],
  vmm: string,
  now = Date.now(),
): HostVmNetworkReport {
  const before = saved.filter((one) => one.vmm !== vmm && now - one.at < DAY_MS)
  if (before.length === 0) return report
  const refused = before.flatMap((one) => one.decisions ?? []).filter(({ at }) => now - Date.parse(at) < DAY_MS)
  return {
    ...report,
    flows: sum([...report.flows, ...before.flatMap((one) => one.flows)]),
    decisions: sumDecisions([...report.decisions, ...refused]),
  }
}

/** One decision per attempt, with the time of the last one, the newest first. */
function sumDecisions(decisions: readonly EgressDecision[]): EgressDecision[] {
  const byAttempt = new Map<string, EgressDecision>()
  for (const decision of decisions) {
    const { via, destination, protocol, port, reason } = decision
    const key = `${via} ${destination} ${protocol} ${port} ${reason}`
    const known = byAttempt.get(key)
    const at = known && known.at > decision.at ? known.at : decision.at
    byAttempt.set(key, { ...decision, at, count: decision.count + (known?.count ?? 0) })
  }
  return [...byAttempt.values()].sort((one, other) => (one.at < other.at ? 1 : -1)).slice(0, DECISIONS_MAX)
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
