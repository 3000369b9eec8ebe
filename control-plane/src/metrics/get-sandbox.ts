/**
 * What a sandbox uses now. Reading it neither counts as a use nor resumes a paused sandbox. A measurement that is not
 * available is 0 and never an error: the caller, often a dashboard, shows other sandboxes too.
 */
import { findCpuQuotaPct, type HostVmMetrics, type MetricsView } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../hosts/host-error.ts'

const MIB = 1024 * 1024

type MetricsRow = Pick<SandboxRow, 'id' | 'status' | 'host_id' | 'shape' | 'vcpu' | 'mem_mib'>

/** While the sandbox does not run, everything is 0. If only its host does not answer, the limits are those of its shape. */
export async function getSandboxMetrics(deps: Deps, sandbox: MetricsRow): Promise<MetricsView> {
  const isRunning = sandbox.status === 'running'
  const found = isRunning ? await findMetrics(deps, sandbox) : undefined
  const memoryBytes = found?.memory_bytes ?? 0
  const limitBytes = isRunning ? sandbox.mem_mib * MIB : 0
  const cores = found?.cpu_cores_used ?? 0
  const allocatedCores = isRunning ? findCpuQuotaPct(sandbox) / 100 : 0
  return {
    sandbox_id: sandbox.id,
    memory_bytes: memoryBytes,
    memory_limit_bytes: limitBytes,
    memory_pct: percentOf(memoryBytes, limitBytes),
    cpu_cores_used: cores,
    cpu_cores_allocated: allocatedCores,
    cpu_pct: percentOf(cores, allocatedCores),
    as_of: found?.at ?? deps.now().toISOString(),
  }
}

async function findMetrics(deps: Deps, { id, host_id }: MetricsRow): Promise<HostVmMetrics | undefined> {
  try {
    return await (await deps.hosts.get(host_id)).getVmMetrics(id)
  } catch (error) {
    if (!(error instanceof HostError)) throw error
    return undefined
  }
}

/** The VMM needs some memory and time beside the guest's, so the measured value may exceed the limit a little. */
const percentOf = (value: number, limit: number): number =>
  limit === 0 ? 0 : Math.min(Math.round((value / limit) * 10_000) / 100, 100)
