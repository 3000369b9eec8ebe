/**
 * The destinations a sandbox reached within a day, over the ends of its bodies: what a slot has seen goes with the slot.
 * Kept by body, so that one that is resumed in place, with its slot, is not counted twice.
 */
import type { EgressFlow, HostVmNetworkReport } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import type { VmmRecord } from '../vmm/vmm.ts'
import type { VmRecord } from './registry.ts'

export type SavedFlows = { body: string; at: number; flows: EgressFlow[] }

const DAY_MS = 24 * 60 * 60_000
const FLOWS_MAX = 1_000
/** Of more bodies than this within a day the oldest share a place, and go together. */
const BODIES_MAX = 8
/** Of one body the most used: they are written with every record. */
const KEPT_MAX = 200

/** Before its slot is released; whether there are any. Nothing fails for their sake. */
export async function saveFlows(deps: Deps, record: VmRecord, body: VmmRecord): Promise<boolean> {
  if (body.released || body.slotGone) return false
  try {
    const flows = (await deps.network.slots.flows(body.slot)).slice(0, KEPT_MAX)
    if (flows.length > 0) record.flows = addFlows(record.flows ?? [], { body: body.id, at: Date.now(), flows })
    return flows.length > 0
  } catch (error) {
    deps.log.warn({ err: error, sandbox: record.id }, 'could not read what a sandbox reached')
    return false
  }
}

export function addFlows(kept: readonly SavedFlows[], more: SavedFlows): SavedFlows[] {
  const recent = kept.filter(({ body, at }) => body !== more.body && more.at - at < DAY_MS)
  const all = [...recent, more]
  if (all.length <= BODIES_MAX) return all
  const [oldest, next, ...rest] = all as [SavedFlows, SavedFlows, ...SavedFlows[]]
  return [{ ...next, flows: sum([...oldest.flows, ...next.flows]).slice(0, KEPT_MAX) }, ...rest]
}

/** What the slot has seen, and what those before it had. */
export function withFlows(
  report: HostVmNetworkReport,
  { flows: kept = [] }: Pick<VmRecord, 'flows'>,
  body: string,
  now = Date.now(),
): HostVmNetworkReport {
  const before = kept.filter((one) => one.body !== body && now - one.at < DAY_MS).flatMap((one) => one.flows)
  return before.length === 0 ? report : { ...report, flows: sum([...report.flows, ...before]) }
}

/** One of each destination, the most used first. */
function sum(flows: readonly EgressFlow[]): EgressFlow[] {
  const byPlace = new Map<string, EgressFlow>()
  for (const flow of flows) {
    const place = `${flow.destination} ${flow.protocol} ${flow.port}`
    byPlace.set(place, { ...flow, count: flow.count + (byPlace.get(place)?.count ?? 0) })
  }
  return [...byPlace.values()].sort((one, other) => other.count - one.count).slice(0, FLOWS_MAX)
}
