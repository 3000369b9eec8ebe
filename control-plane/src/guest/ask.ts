/** A short question to a guest's agent: JSON in, JSON out. What does not fit its schema is no answer. */
import type { Static, TSchema } from 'typebox'
import { Value } from 'typebox/value'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { type GuestRequest, parseJson, readAll, responseOf } from '../hosts/client.ts'
import { resetStream } from '../hosts/session.ts'
import { checkGuestAnswer } from './failure.ts'

/** A list of all processes with their arguments is the largest. */
const ANSWER_MAX_BYTES = 8 * 1024 * 1024

export async function askGuest<Answer extends TSchema>(
  deps: Deps,
  sandbox: Pick<SandboxRow, 'id' | 'host_id'>,
  request: GuestRequest & { body?: object | Uint8Array },
  answer: Answer,
  signal: AbortSignal,
): Promise<Static<Answer>> {
  const host = await deps.hosts.get(sandbox.host_id)
  const stream = host.openGuest(sandbox.id, request, signal)
  try {
    if (request.method === 'POST') stream.end(encode(request.body))
    await checkGuestAnswer(stream, await responseOf(stream, signal), signal)
    const value = parseJson(await readAll(stream, ANSWER_MAX_BYTES, signal))
    if (!Value.Check(answer, value)) throw new Error(`the guest answered ${request.route} with what does not fit`)
    return value as Static<Answer>
  } finally {
    resetStream(stream)
  }
}

/** Bytes are sent as they are. */
const encode = (body: object | Uint8Array | undefined): string | Uint8Array =>
  body === undefined || body instanceof Uint8Array ? (body ?? '') : JSON.stringify(body)
