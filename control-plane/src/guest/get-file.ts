/** A file out of a guest. The guest says how long it is; what it then sends is held to that. */
import type { ClientHttp2Stream } from 'node:http2'
import { Readable } from 'node:stream'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { responseOf } from '../hosts/client.ts'
import { resetStream } from '../hosts/session.ts'
import { ensureRunning } from './ensure-running.ts'
import { checkGuestAnswer, guestUnreachable, withGuest } from './failure.ts'
import { checkPath } from './put-file.ts'

export type GuestFile = {
  /** Undefined for files the kernel makes up. */
  bytes: number | undefined
  content: Readable
}

/** The signal also ends the content: a reader that hangs up stops the guest from sending. */
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
        const headers = await responseOf(stream, signal)
        await checkGuestAnswer(stream, headers, signal)
        const bytes = parseLength(headers['content-length'])
        const activity = deps.activity.beginUse(sandbox.id)
        stream.once('close', () => activity[Symbol.dispose]())
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
  if (!/^\d{1,15}$/.test(text)) throw new Error('the guest sent a length that is none')
  return Number(text)
}

/** Passes what comes on, and fails if it is not just as much as was announced. */
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
    // When the head has not left yet this becomes the answer; later it cuts the connection.
    throw guestUnreachable(error)
  } finally {
    resetStream(stream)
  }
}
