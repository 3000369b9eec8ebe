/**
 * What a sandbox used in the last hour, from the host that it runs on or was paused on. Without an answer of that host, and
 * for a sandbox that no longer exists, there are no points.
 */
import {
  isTerminal,
  METRICS_STEP_SECONDS,
  METRICS_WINDOW_SECONDS,
  type MetricsPoint,
  type MetricsSeriesView,
} from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../hosts/host-error.ts'

type SeriesRow = Pick<SandboxRow, 'id' | 'status' | 'host_id'>

export async function getSandboxSeries(deps: Deps, sandbox: SeriesRow): Promise<MetricsSeriesView> {
  return {
    sandbox_id: sandbox.id,
    step_seconds: METRICS_STEP_SECONDS,
    window_seconds: METRICS_WINDOW_SECONDS,
    points: isTerminal(sandbox.status) ? [] : await listPoints(deps, sandbox),
  }
}

async function listPoints(deps: Deps, { id, host_id }: SeriesRow): Promise<MetricsPoint[]> {
  try {
    return (await (await deps.hosts.get(host_id)).getVmSeries(id)).points
  } catch (error) {
    if (!(error instanceof HostError)) throw error
    return []
  }
}
