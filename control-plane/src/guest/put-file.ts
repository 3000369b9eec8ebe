/**
 * A file into a guest: bytes pass through at the pace of the slower end and nothing is held. The guest writes beside
 * the target and renames at the end of the body, so an upload that is cut must never look ended: it resets the stream.
 */
import type { IncomingMessage } from 'node:http'
import { pipeline } from 'node:stream/promises'
import { badField, Failure } from '@warren/kit/failure'
import { checkAbsolutePath, FILE_MAX_BYTES, GuestUploadAnswer } from '@warren/protocol'
import { Value } from 'typebox/value'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { parseJson, readAll, responseOf } from '../hosts/client.ts'
import { resetStream } from '../hosts/session.ts'
import { limitBytes } from '../http/body.ts'
import { CallerGone } from '../http/caller-gone.ts'
import { checkGuestAnswer, withGuest } from './failure.ts'
import { wakeSandbox } from './wake.ts'

const ANSWER_MAX_BYTES = 1024

export async function putFile(
  deps: Deps,
  sandbox: SandboxRow,
  path: string,
  body: IncomingMessage,
  signal: AbortSignal,
): Promise<void> {
  checkPath(path)
  if (Number(body.headers['content-length'] ?? 0) > FILE_MAX_BYTES) throw tooLarge()
  const running = await wakeSandbox(deps, sandbox, signal)
  await withGuest(deps, running, async () => {
    const host = await deps.hosts.get(running.host_id)
    const stream = host.openGuest(sandbox.id, { method: 'PUT', route: 'files', query: { path } }, signal)
    const counter = { bytes: 0 }
    try {
      const answered = responseOf(stream, signal)
      answered.catch(() => {}) // The upload may fail first; then that is the reason.
      const uploaded = pipeline(limitBytes(body, FILE_MAX_BYTES, counter), stream)
      // A guest may refuse (a directory, a full disk) long before the end of the body.
      await Promise.race([uploaded, answered])
      await checkGuestAnswer(stream, await answered, signal)
      await uploaded
      const answer = parseJson(await readAll(stream, ANSWER_MAX_BYTES, signal))
      if (!Value.Check(GuestUploadAnswer, answer) || answer.bytes !== counter.bytes) {
        throw new Error(`the guest says it wrote ${JSON.stringify(answer)} of ${counter.bytes} bytes`)
      }
    } catch (error) {
      resetStream(stream)
      // Half a body is heard of a moment before the closed connection.
      const left = signal.aborted || (body.readableAborted && !(error instanceof Failure))
      throw left ? new CallerGone() : error
    }
  })
}

export function checkPath(path: string): void {
  const fault = checkAbsolutePath(path)
  if (fault) throw badField({ path: fault })
}

const tooLarge = () => badField({ body: `is larger than ${FILE_MAX_BYTES} bytes` })
