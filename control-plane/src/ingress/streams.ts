/**
 * What is open into sandboxes. Once a second those with something open are looked at: where ingress was switched off, or
 * the sandbox runs no more, it is cut. So it does not matter which process changed the row.
 */
import type { ClientHttp2Stream } from 'node:http2'
import type { Deps } from '../deps.ts'
import { resetStream } from '../hosts/session.ts'
import { findSandboxes } from '../sandboxes/queries.ts'
import { isReachable } from './upstream.ts'

const LOOK_MS = 1_000

export type IngressStreams = ReturnType<typeof createIngressStreams>

export function createIngressStreams(deps: Deps) {
  const open = new Map<string, Set<ClientHttp2Stream>>()

  async function look(): Promise<void> {
    if (open.size === 0) return
    const rows = await findSandboxes(deps.database, [...open.keys()])
    for (const [id, streams] of open) {
      const row = rows.get(id)
      if (row && isReachable(row) && row.status !== 'paused') continue
      for (const stream of streams) resetStream(stream, new Error('ingress was switched off'))
    }
  }

  const timer = setInterval(() => {
    look().catch((error) => deps.log.warn({ err: error }, 'could not look after open connections of the ingress'))
  }, LOOK_MS).unref()

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
