/** Asks an app for its front page, through a tunnel. */
import http from 'node:http'
import { ControlPlaneError } from '../control-plane/error.ts'
import { isRefused, openTunnel } from '../control-plane/tunnel.ts'
import type { Deps } from '../deps.ts'

/** `silent`: something accepted the connection and did not answer. */
export type ProbeResult = { kind: 'answered'; status: number } | { kind: 'refused' } | { kind: 'silent' }

const ANSWER_LIMIT_MS = 10_000

export async function probe(
  { controlPlane }: Deps,
  { sandboxId, port, host }: { sandboxId: string; port: number; host: string },
  signal: AbortSignal,
): Promise<ProbeResult> {
  const limited = AbortSignal.any([signal, AbortSignal.timeout(ANSWER_LIMIT_MS)])
  try {
    const tunnel = await openTunnel(controlPlane.access, sandboxId, port, limited)
    try {
      return { kind: 'answered', status: await request(tunnel, host, limited) }
    } finally {
      tunnel.destroy()
    }
  } catch (error) {
    signal.throwIfAborted()
    if (isRefused(error)) return { kind: 'refused' }
    if (error instanceof ControlPlaneError) throw error
    return { kind: 'silent' }
  }
}

function request(tunnel: import('node:stream').Duplex, host: string, signal: AbortSignal): Promise<number> {
  const { promise, resolve, reject } = Promise.withResolvers<number>()
  const sent = http.get({
    path: '/',
    headers: { Host: host, Connection: 'close', 'User-Agent': 'warren-gateway' },
    createConnection: () => tunnel,
    signal,
  })
  sent.once('response', (response) => {
    response.resume()
    resolve(response.statusCode ?? 0)
  })
  sent.once('error', reject)
  return promise
}
