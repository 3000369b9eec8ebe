/**
 * A connection into a guest: a shell's terminal or a port. Failures until it stands are ordinary answers; from then on
 * it is two streams of bytes, tied to the client's by whoever opened it.
 */
import type { ClientHttp2Stream } from 'node:http2'
import type { Socket } from 'node:net'
import { TUNNEL_OPEN_TIMEOUT_MS } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { type GuestRequest, responseOf } from '../hosts/client.ts'
import { resetStream } from '../hosts/session.ts'
import { ensureRunning } from './ensure-running.ts'
import { checkGuestAnswer, checkRunningState, withUsedGuest } from './failure.ts'

/** The guest gives up by itself; this is for one that hangs. */
const OPEN_LIMIT_MS = TUNNEL_OPEN_TIMEOUT_MS + 2_000
/** Below what proxies and address translators forget idle connections after. */
const KEEP_ALIVE_MS = 30_000

export async function openPipe(
  deps: Deps,
  sandbox: SandboxRow,
  request: Pick<GuestRequest, 'route' | 'query'>,
  gone: AbortSignal,
): Promise<ClientHttp2Stream> {
  const running = await ensureRunning(deps, sandbox, gone, checkRunningState)
  return withUsedGuest(
    deps,
    running,
    async () => {
      const host = await deps.hosts.get(running.host_id)
      const late = new AbortController()
      const timer = setTimeout(() => late.abort(new Error('the guest did not open it in time')), OPEN_LIMIT_MS)
      const signal = AbortSignal.any([gone, late.signal])
      const stream = host.openGuest(sandbox.id, { method: 'POST', ...request }, signal)
      try {
        await checkGuestAnswer(stream, await responseOf(stream, signal), signal)
        return stream
      } catch (error) {
        resetStream(stream)
        throw error
      } finally {
        clearTimeout(timer)
      }
    },
    gone,
  )
}

/**
 * Each direction ends by itself, so a half-close passes through; a reset on either side is a reset on the other. Each
 * side is read at the pace of the other. Only bytes that move count as activity.
 */
export function joinSocket(
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

  // Not by pipe's own rule: a stream that was cut off may look ended.
  socket.pipe(stream, { end: false })
  socket.once('end', () => stream.end())
  socket.once('close', () => resetStream(stream))
  stream.pipe(socket, { end: false })
  stream.once('end', () => {
    if (stream.rstCode === 0) socket.end()
  })
  whenClosed(stream, () => {
    if (stream.rstCode === 0 && stream.readableEnded) socket.destroySoon()
    // A socket that was told to end cannot be reset any more; Node would leave it open for ever.
    else if (socket.writableEnded) socket.destroy()
    else socket.resetAndDestroy()
  })
}

/** A guest may hang up right behind its answer, before anybody could listen for it. */
export function whenClosed(stream: ClientHttp2Stream, closed: () => void): void {
  if (stream.destroyed) closed()
  else stream.once('close', closed)
}
