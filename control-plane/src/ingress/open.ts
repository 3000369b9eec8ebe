/** The way of one request into a sandbox: which one, may it be reached, does it run, does anybody listen. */
import type { ClientHttp2Stream } from 'node:http2'
import { Failure, Fault } from '@warren/kit/failure'
import { isTerminal } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { wakeSandbox } from '../guest/wake.ts'
import { HostError } from '../hosts/failure.ts'
import { domainName, parseTarget } from './target.ts'

export class Refusal extends Error {
  readonly status: 404 | 502 | 503
  constructor(status: 404 | 502 | 503, message: string, options?: ErrorOptions) {
    super(message, options)
    this.status = status
  }
}

export async function openTarget(
  deps: Deps,
  host: string | undefined,
  gone: AbortSignal,
): Promise<{ id: string; stream: ClientHttp2Stream }> {
  const target = parseTarget(host, domainName(deps.config.ingressDomain))
  const row = target && (await deps.loaders.sandbox(target.id))
  // One answer for all of them: it says nothing about what is there.
  if (!target || !row || !mayBeReached(row)) throw new Refusal(404, 'Nothing is served here.')
  const running = await wake(deps, row, gone)
  try {
    const client = await deps.hosts.get(running.host_id)
    return { id: row.id, stream: await client.openPort(row.id, target.port, gone) }
  } catch (error) {
    if (!(error instanceof HostError)) throw error
    if (error.code === 'port_closed') {
      throw new Refusal(502, `Nothing listens on port ${target.port} of this sandbox.`, { cause: error })
    }
    throw new Refusal(503, 'This sandbox cannot be reached at the moment.', { cause: error })
  }
}

export const mayBeReached = (row: SandboxRow): boolean => row.ingress_enabled && !isTerminal(row.status)

async function wake(deps: Deps, row: SandboxRow, gone: AbortSignal): Promise<SandboxRow> {
  try {
    return await wakeSandbox(deps, row, gone)
  } catch (error) {
    if (!(error instanceof Failure || error instanceof Fault)) throw error
    throw new Refusal(503, 'This sandbox is not running.', { cause: error })
  }
}
