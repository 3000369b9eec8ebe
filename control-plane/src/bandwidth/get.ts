/** The bandwidth of a sandbox. For a running one the host's current counters are used, otherwise the stored totals. */
import { BANDWIDTH_UNMETERED, type BandwidthView, type HostCounts, remainingBytes } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../hosts/host-error.ts'
import { recordCounts } from './record-counts.ts'

type BandwidthRow = Pick<
  SandboxRow,
  'id' | 'status' | 'host_id' | 'bandwidth_quota_bytes' | 'bandwidth_used_bytes' | 'bandwidth_ingress_bytes'
>

export async function getBandwidth(deps: Deps, sandbox: BandwidthRow): Promise<BandwidthView> {
  const live = sandbox.status === 'running' ? await findLiveCounts(deps, sandbox) : undefined
  if (!live) return viewBandwidth(sandbox)
  await recordCounts(deps.db, [{ id: sandbox.id, ...live }])
  return viewBandwidth(sandbox, live)
}

/** `capped` is the host's report. Without one, a quota that is used up counts as capped. */
export function viewBandwidth(row: BandwidthRow, live?: HostCounts & { capped: boolean }): BandwidthView {
  const quota = row.bandwidth_quota_bytes
  const used = Math.max(row.bandwidth_used_bytes, live?.used_bytes ?? 0)
  const metered = quota !== BANDWIDTH_UNMETERED
  return {
    id: row.id,
    quota_bytes: quota,
    used_bytes: used,
    ingress_bytes: Math.max(row.bandwidth_ingress_bytes, live?.ingress_bytes ?? 0),
    remaining_bytes: remainingBytes(quota, used),
    capped: metered && (live ? live.capped : used >= quota),
  }
}

/** Undefined when the host is unreachable. The stored totals are then at most some seconds old. */
async function findLiveCounts(deps: Deps, row: BandwidthRow): Promise<(HostCounts & { capped: boolean }) | undefined> {
  try {
    const host = await deps.hosts.get(row.host_id)
    const { used_bytes, ingress_bytes, capped } = (await host.getNetwork(row.id)).bandwidth
    return { used_bytes, ingress_bytes, capped }
  } catch (error) {
    if (!(error instanceof HostError)) throw error
    return undefined
  }
}
