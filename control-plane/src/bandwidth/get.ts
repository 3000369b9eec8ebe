/** The budget of a sandbox: of a running one what the kernel of its host says now, otherwise the ledger. */
import { BANDWIDTH_UNMETERED, type BandwidthView, type HostCounts, remainingBytes } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../hosts/host-error.ts'
import { recordCounts } from './record-counts.ts'

type Ledger = Pick<
  SandboxRow,
  'id' | 'status' | 'host_id' | 'bandwidth_quota_bytes' | 'bandwidth_used_bytes' | 'bandwidth_ingress_bytes'
>

export async function getBandwidth(deps: Deps, sandbox: Ledger): Promise<BandwidthView> {
  const now = sandbox.status === 'running' ? await ask(deps, sandbox) : undefined
  if (!now) return viewBandwidth(sandbox)
  await recordCounts(deps.db, [{ id: sandbox.id, ...now }])
  return viewBandwidth(sandbox, now)
}

/** `capped`: until the kernel has said so, what is used up counts as such. */
export function viewBandwidth(row: Ledger, now?: HostCounts & { capped: boolean }): BandwidthView {
  const quota = row.bandwidth_quota_bytes
  const used = Math.max(row.bandwidth_used_bytes, now?.used_bytes ?? 0)
  const metered = quota !== BANDWIDTH_UNMETERED
  return {
    id: row.id,
    quota_bytes: quota,
    used_bytes: used,
    ingress_bytes: Math.max(row.bandwidth_ingress_bytes, now?.ingress_bytes ?? 0),
    remaining_bytes: remainingBytes(quota, used),
    capped: metered && (now ? now.capped : used >= quota),
  }
}

/** Undefined when the host does not say; the ledger is then at most some seconds behind. */
async function ask(deps: Deps, row: Ledger): Promise<(HostCounts & { capped: boolean }) | undefined> {
  try {
    const host = await deps.hosts.get(row.host_id)
    const { used_bytes, ingress_bytes, capped } = (await host.getNetwork(row.id)).bandwidth
    return { used_bytes, ingress_bytes, capped }
  } catch (error) {
    if (!(error instanceof HostError)) throw error
    return undefined
  }
}
