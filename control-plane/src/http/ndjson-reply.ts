/** An answer of lines, written by hand: its head leaves at once, and each line when there is room for it. */
import { once } from 'node:events'
import { encodeLine } from '@warren/protocol'
import type { FastifyReply } from 'fastify'

export type NdjsonReply<Line> = {
  /** Resolves when the connection takes more; rejects when it is gone. */
  write(line: Line): Promise<void>
  /** Nothing when an earlier line still waits: a reader that does not read needs no heartbeats. */
  writeIfIdle(line: Line): void
  end(): void
  /** An answer that cannot be finished must not look finished. */
  cut(): void
}

export function openNdjson<Line>(reply: FastifyReply): NdjsonReply<Line> {
  const { raw } = reply
  reply.hijack()
  for (const [name, value] of Object.entries(reply.getHeaders())) if (value !== undefined) raw.setHeader(name, value)
  // The last header keeps proxies from holding lines back.
  raw.writeHead(200, {
    'content-type': 'application/x-ndjson',
    'cache-control': 'no-store',
    'x-accel-buffering': 'no',
  })
  raw.flushHeaders()
  const broken = new AbortController()
  raw.once('close', () => broken.abort(new Error('the reader has gone')))
  raw.on('error', () => {}) // The close that follows says it.

  return {
    async write(line) {
      broken.signal.throwIfAborted()
      if (raw.write(encodeLine(line))) return
      await once(raw, 'drain', { signal: broken.signal })
    },
    writeIfIdle(line) {
      if (!broken.signal.aborted && !raw.writableNeedDrain) raw.write(encodeLine(line))
    },
    end: () => void raw.end(),
    cut: () => void raw.destroy(),
  }
}
