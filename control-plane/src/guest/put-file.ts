/**
 * Uploads a file into a guest. Bytes are forwarded at the pace of the slower side, and nothing is buffered here. The
 * guest writes a temporary file and renames it at the end of the body, so an interrupted upload must never look
 * complete: it resets the stream.
 */
import { pipeline } from 'node:stream/promises'
import { badField } from '@warren/kit/failure'
import { matches } from '@warren/kit/matches'
import { checkAbsolutePath, FILE_MAX_BYTES, GuestUploadResponse } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { parseJson, readBody, waitForHeaders } from '../hosts/client.ts'
import { resetStream } from '../hosts/session.ts'
import { ensureRunning } from './ensure-running.ts'
import { checkGuestResponse } from './failures.ts'
import { withGuest } from './with-guest.ts'

const RESPONSE_MAX_BYTES = 1024

/** `bytes` fails at the size limit; `announced` is 0 if the size is not known in advance. */
export type Upload = { bytes: AsyncIterable<Buffer>; announced: number }

export async function putFile(
  deps: Deps,
  sandbox: SandboxRow,
  path: string,
  content: Upload,
  signal: AbortSignal,
): Promise<void> {
  checkPath(path)
  if (content.announced > FILE_MAX_BYTES) throw tooLarge()
  const running = await ensureRunning(deps, sandbox, signal)
  await withGuest(
    deps,
    running,
    async () => {
      const host = await deps.hosts.get(running.host_id)
      const stream = host.openGuest(sandbox.id, { method: 'PUT', route: 'files', query: { path } }, signal)
      const counter = { bytes: 0 }
      try {
        const headers = waitForHeaders(stream, signal)
        headers.catch(() => {}) // If the upload fails first, that error is reported.
        const uploaded = pipeline(count(content.bytes, counter), stream)
        // A guest may respond with an error (a directory, a full disk) long before the end of the body.
        await Promise.race([uploaded, headers])
        await checkGuestResponse(stream, await headers, signal)
        await uploaded
        const result = parseJson(await readBody(stream, RESPONSE_MAX_BYTES, signal))
        if (!matches(GuestUploadResponse, result) || result.bytes !== counter.bytes) {
          throw new Error(`the guest reports ${JSON.stringify(result)} after an upload of ${counter.bytes} bytes`)
        }
      } catch (error) {
        resetStream(stream)
        throw error
      }
    },
    signal,
  )
}

async function* count(bytes: AsyncIterable<Buffer>, counter: { bytes: number }): AsyncGenerator<Buffer> {
  for await (const chunk of bytes) {
    counter.bytes += chunk.length
    yield chunk
  }
}

export function checkPath(path: string): void {
  const fault = checkAbsolutePath(path)
  if (fault) throw badField({ path: fault })
}

const tooLarge = () => badField({ body: `is larger than ${FILE_MAX_BYTES} bytes` })
