/** A streamed NDJSON response, written past Fastify: the head is sent immediately, each line when there is room. */
import { once } from 'node:events'
import { encodeLine } from '@warren/protocol'
import type { FastifyReply } from 'fastify'

export type NdjsonReply<Line> = {
  /** Resolves when the connection accepts more; rejects when it has closed. */
  write(line: Line): Promise<void>
  /** Does nothing while an earlier line is still buffered: a client that does not read needs no heartbeats. */
  writeIfIdle(line: Line): void
  end(): void
  /** Closes the connection in mid-response, so that an incomplete stream cannot be mistaken for a complete one. */
  abort(): void
}

export function openNdjson<Line>(reply: FastifyReply): NdjsonReply<Line> {
  const { raw } = reply
  reply.hijack()
  for (const [name, value] of Object.entries(reply.getHeaders())) if (value !== undefined) raw.setHeader(name, value)
  raw.writeHead(200, {
    'content-type': 'application/x-ndjson',
    'cache-control': 'no-store',
    // Keeps reverse proxies from buffering lines.
    'x-accel-buffering': 'no',
  })
  raw.flushHeaders()
  const closed = new AbortController()
  raw.once('close', () => closed.abort(new Error('the client disconnected')))
  raw.on('error', () => {}) // A `close` event follows and is handled above.

  return {
    async write(line) {
      closed.signal.throwIfAborted()
      if (raw.write(encodeLine(line))) return
      await once(raw, 'drain', { signal: closed.signal })
    },
    writeIfIdle(line) {
      if (!closed.signal.aborted && !raw.writableNeedDrain) raw.write(encodeLine(line))
    },
    end: () => void raw.end(),
    abort: () => void raw.destroy(),
  }
}
