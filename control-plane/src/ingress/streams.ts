/**
 * Tracks the open streams into sandboxes. Once a second it checks the sandboxes that have any, and resets their streams
 * if ingress was switched off or the sandbox no longer runs. That works whichever process changed the row.
 */
import type { ClientHttp2Stream } from 'node:http2'
import type { Deps } from '../deps.ts'
import { resetStream } from '../hosts/session.ts'
import { findSandboxes } from '../sandboxes/queries.ts'
import { isReachable } from './upstream.ts'

const CHECK_EVERY_MS = 1_000

export type IngressStreams = ReturnType<typeof createIngressStreams>

export function createIngressStreams(deps: Deps) {
  const open = new Map<string, Set<ClientHttp2Stream>>()

  async function check(): Promise<void> {
    if (open.size === 0) return
    const rows = await findSandboxes(deps.database, [...open.keys()])
    for (const [id, streams] of open) {
      const row = rows.get(id)
      if (row && isReachable(row) && row.status !== 'paused') continue
      for (const stream of streams) resetStream(stream, new Error('the sandbox is no longer reachable by ingress'))
    }
  }

  const timer = setInterval(() => {
    check().catch((error) => deps.log.warn({ err: error }, 'failed to check the open connections of the ingress'))
  }, CHECK_EVERY_MS).unref()

  return {
    get count(): number {
      return [...open.values()].reduce((sum, streams) => sum + streams.size, 0)
    },
    add(id: string, stream: ClientHttp2Stream): void {
      const streams = open.get(id) ?? new Set()
      open.set(id, streams.add(stream))
      stream.once('close', () => {
        streams.delete(stream)
        if (streams.size === 0 && open.get(id) === streams) open.delete(id)
      })
    },
    close(): void {
      clearInterval(timer)
      for (const streams of open.values()) for (const stream of streams) resetStream(stream)
    },
  }
}
