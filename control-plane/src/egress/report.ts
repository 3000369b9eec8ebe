/** Fetches what the host observed of a running sandbox's network. Only the host has this data. */
import { upstreamUnavailable, wrongState } from '@warren/kit/failure'
import type { HostVmNetworkReport } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../hosts/host-error.ts'

export async function getNetworkReport(deps: Deps, sandbox: SandboxRow): Promise<HostVmNetworkReport> {
  if (sandbox.status !== 'running') throw wrongState(sandbox.status, 'running')
  try {
    const host = await deps.hosts.get(sandbox.host_id)
    return await host.getNetwork(sandbox.id)
  } catch (error) {
    if (!(error instanceof HostError)) throw error
    throw upstreamUnavailable('the host of the sandbox did not respond', { cause: error })
  }
}
