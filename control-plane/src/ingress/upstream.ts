/** Finds the sandbox behind a request, makes sure that it is running, and connects to a port of it. */
import type { ClientHttp2Stream } from 'node:http2'
import { Failure, Fault } from '@warren/kit/failure'
import { ProxyError } from '@warren/kit/http-proxy/error'
import { isTerminal } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { ensureRunning } from '../guest/ensure-running.ts'
import { HostError } from '../hosts/host-error.ts'
import type { Target } from './hostname.ts'

/** `version` is that of the sandbox's row. A connection opened under another version is not reused for this request. */
export type Upstream = Target & { hostId: string | null; version: string }

export async function resolveUpstream(deps: Deps, target: Target, signal: AbortSignal): Promise<Upstream> {
  for (;;) {
    const found = await deps.loaders.sandboxVersion(target.id)
    // The same response for all cases, so that it does not reveal whether a sandbox exists.
    if (!found || !isReachable(found.row)) throw new ProxyError(404, 'Nothing is served here.')
    const { row, version } = found
    if (row.status === 'running') return { ...target, hostId: row.host_id, version }
    await waitUntilRunning(deps, row, signal)
  }
}

export async function connectUpstream(
  deps: Deps,
  { id, port, hostId }: Upstream,
  signal: AbortSignal,
): Promise<ClientHttp2Stream> {
  try {
    const client = await deps.hosts.get(hostId)
    return await client.openPort(id, port, signal)
  } catch (error) {
    if (!(error instanceof HostError)) throw error
    if (error.code === 'port_closed') {
      throw new ProxyError(502, `No program listens on port ${port} of this sandbox.`, { cause: error })
    }
    throw new ProxyError(503, 'This sandbox cannot be reached at the moment.', { cause: error })
  }
}

export const isReachable = (row: SandboxRow): boolean => row.ingress_enabled && !isTerminal(row.status)

async function waitUntilRunning(deps: Deps, row: SandboxRow, signal: AbortSignal): Promise<void> {
  try {
    await ensureRunning(deps, row, signal)
  } catch (error) {
    if (!(error instanceof Failure || error instanceof Fault)) throw error
    throw new ProxyError(503, 'This sandbox is not running.', { cause: error })
  }
}
