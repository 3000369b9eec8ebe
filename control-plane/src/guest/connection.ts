/**
 * Opens a connection into a guest: the terminal of a shell, or a port. Failures before it is open are ordinary error
 * responses. After that it is a pair of byte streams, which the caller connects to those of the client.
 */
import type { ClientHttp2Stream } from 'node:http2'
import type { Socket } from 'node:net'
import { TUNNEL_OPEN_TIMEOUT_MS } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { type GuestRequest, waitForHeaders } from '../hosts/client.ts'
import { resetStream } from '../hosts/session.ts'
import { ensureRunning } from './ensure-running.ts'
import { checkGuestResponse } from './failures.ts'
import { checkRunningOrConflict, withProcessGuest } from './with-guest.ts'

/** The guest has its own timeout; this one covers a guest that hangs. */
const OPEN_TIMEOUT_MS = TUNNEL_OPEN_TIMEOUT_MS + 2_000
/** Shorter than the time after which proxies and NAT devices drop idle connections. */
const KEEP_ALIVE_MS = 30_000

export async function openGuestConnection(
  deps: Deps,
  sandbox: SandboxRow,
  request: Pick<GuestRequest, 'route' | 'query'>,
  disconnected: AbortSignal,
): Promise<ClientHttp2Stream> {
  const running = await ensureRunning(deps, sandbox, disconnected, checkRunningOrConflict)
  return withProcessGuest(
    deps,
    running,
    async () => {
      const host = await deps.hosts.get(running.host_id)
      const timeout = new AbortController()
      const timer = setTimeout(
        () => timeout.abort(new Error('the guest did not open the connection in time')),
        OPEN_TIMEOUT_MS,
      )
      const signal = AbortSignal.any([disconnected, timeout.signal])
      const stream = host.openGuest(sandbox.id, { method: 'POST', ...request }, signal)
      try {
        await checkGuestResponse(stream, await waitForHeaders(stream, signal), signal)
        return stream
      } catch (error) {
        resetStream(stream)
        throw error
      } finally {
        clearTimeout(timer)
      }
    },
    disconnected,
  )
}

/**
 * Relays bytes between a client socket and a guest stream. The directions end independently, so a half-close passes
 * through; a reset on either side resets the other. Each side is read at the pace of the other. Only transferred bytes
 * count as activity.
 */
export function relaySocket(
  deps: Deps,
  sandboxId: string,
  { socket, head }: { socket: Socket; head: Buffer },
  stream: ClientHttp2Stream,
): void {
  socket.setKeepAlive(true, KEEP_ALIVE_MS)
  socket.setNoDelay(true)
  socket.setTimeout(0)
  if (head.length > 0) socket.unshift(head)
  for (const source of [socket, stream]) source.on('data', () => deps.activity.recordUse(sandboxId))

  // Not with the `end` option of pipe: an interrupted stream may look ended.
  socket.pipe(stream, { end: false })
  socket.once('end', () => stream.end())
  socket.once('close', () => resetStream(stream))
  stream.pipe(socket, { end: false })
  stream.once('end', () => {
    if (stream.rstCode === 0) socket.end()
  })
  onClosed(stream, () => {
    if (stream.rstCode === 0 && stream.readableEnded) socket.destroySoon()
    // A socket whose writable side has ended cannot be reset any more; Node would leave it open forever.
    else if (socket.writableEnded) socket.destroy()
    else socket.resetAndDestroy()
  })
}

/** A guest may close the stream right after its response, before a listener is attached. */
export function onClosed(stream: ClientHttp2Stream, closed: () => void): void {
  if (stream.destroyed) closed()
  else stream.once('close', closed)
}
