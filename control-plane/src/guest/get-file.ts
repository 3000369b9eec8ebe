/** Reads a file from a guest. The guest announces the length, and what it sends must match it. */
import type { ClientHttp2Stream } from 'node:http2'
import { Readable } from 'node:stream'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { waitForHeaders } from '../hosts/client.ts'
import { resetStream } from '../hosts/session.ts'
import { onClosed } from './connection.ts'
import { ensureRunning } from './ensure-running.ts'
import { checkGuestResponse, guestUnreachable } from './failures.ts'
import { checkPath } from './put-file.ts'
import { withGuest } from './with-guest.ts'

export type GuestFile = {
  /** Undefined for files without a known length, such as those of /proc. */
  bytes: number | undefined
  content: Readable
}

/** The signal also ends the content: when the reader disconnects, the guest stops sending. */
export async function getFile(deps: Deps, sandbox: SandboxRow, path: string, signal: AbortSignal): Promise<GuestFile> {
  checkPath(path)
  const running = await ensureRunning(deps, sandbox, signal)
  return withGuest(
    deps,
    running,
    async () => {
      const host = await deps.hosts.get(running.host_id)
      const stream = host.openGuest(sandbox.id, { method: 'GET', route: 'files', query: { path } }, signal)
      try {
        const headers = await waitForHeaders(stream, signal)
        await checkGuestResponse(stream, headers, signal)
        const bytes = parseLength(headers['content-length'])
        const activity = deps.activity.beginUse(sandbox.id)
        onClosed(stream, () => activity[Symbol.dispose]())
        return { bytes, content: Readable.from(exactly(stream, bytes), { objectMode: false }) }
      } catch (error) {
        resetStream(stream)
        throw error
      }
    },
    signal,
  )
}

function parseLength(text: string | undefined): number | undefined {
  if (text === undefined) return undefined
  if (!/^\d{1,15}$/.test(text)) throw new Error('the guest sent an invalid content-length')
  return Number(text)
}

/** Forwards the stream, and fails if its length differs from the announced one. */
async function* exactly(stream: ClientHttp2Stream, bytes: number | undefined): AsyncGenerator<Buffer> {
  let seen = 0
  try {
    for await (const chunk of stream as AsyncIterable<Buffer>) {
      seen += chunk.length
      if (bytes !== undefined && seen > bytes) throw new Error(`the guest sent more than ${bytes} bytes`)
      yield chunk
    }
    if (stream.rstCode !== 0 || seen < (bytes ?? 0)) throw new Error(`the guest sent ${seen} of ${bytes} bytes`)
  } catch (error) {
    // Before the response head is sent this becomes the response; after that it resets the connection.
    throw guestUnreachable(error)
  } finally {
    resetStream(stream)
  }
}
