/**
 * The body of a request that was refused before it was read, for example because its credential is not valid.
 *
 * Such a request must cost little, whatever its size. But a client that is still sending may read its response only when
 * it has sent everything. So a small body is received and discarded. Of a larger one, or one that arrives slowly, the
 * rest is not read, and the connection is closed a moment later.
 */
import type { IncomingMessage } from 'node:http'

const DISCARDED_MAX_BYTES = 1024 * 1024
const DISCARD_MS = 5_000

export function discardBody(request: IncomingMessage): void {
  if (!hasBody(request)) return
  let bytes = 0
  request.on('data', (chunk: Buffer) => {
    bytes += chunk.length
    if (bytes > DISCARDED_MAX_BYTES) request.pause()
  })
  const timer = setTimeout(() => request.destroy(), DISCARD_MS).unref()
  const clear = () => clearTimeout(timer)
  request.once('end', clear).once('close', clear)
}

export const hasBody = ({ headers }: IncomingMessage): boolean =>
  headers['transfer-encoding'] !== undefined || (headers['content-length'] ?? '0') !== '0'
