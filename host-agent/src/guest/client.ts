/** Short questions to a guest's agent: JSON in, JSON out, checked. The guest is outside the door. */
import type { ClientHttp2Session, ClientHttp2Stream, IncomingHttpHeaders } from 'node:http2'
import type { Static, TSchema } from 'typebox'
import { Value } from 'typebox/value'
import { openGuestStream } from './channel.ts'

/** More than any honest answer; a guest that lies must not fill our memory. */
const ANSWER_MAX_BYTES = 1024 * 1024

export class GuestError extends Error {
  override name = 'GuestError'
}

export async function askGuest<Answer extends TSchema>(
  session: ClientHttp2Session,
  request: { method: 'GET' | 'POST'; path: string; body?: object; answer: Answer },
  signal: AbortSignal,
): Promise<Static<Answer>> {
  const stream = openGuestStream(
    session,
    { ':method': request.method, ':path': request.path },
    { signal, endStream: !request.body },
  )
  if (request.body) stream.end(JSON.stringify(request.body))
  const { status, text } = await readAnswer(stream)
  if (status !== 200) throw new GuestError(`the guest refused ${request.path}: ${status} ${text.slice(0, 500)}`)
  const answer = parse(text)
  if (!Value.Check(request.answer, answer)) throw new GuestError(`the guest answered ${request.path} with nonsense`)
  return answer as Static<Answer>
}

function readAnswer(stream: ClientHttp2Stream): Promise<{ status: number; text: string }> {
  return new Promise((resolve, reject) => {
    let status = 0
    const chunks: Buffer[] = []
    let bytes = 0
    stream.once('response', (headers: IncomingHttpHeaders & { ':status'?: number }) => {
      status = headers[':status'] ?? 0
    })
    stream.on('data', (chunk: Buffer) => {
      bytes += chunk.length
      if (bytes > ANSWER_MAX_BYTES) stream.destroy(new GuestError('the guest answers without end'))
      else chunks.push(chunk)
    })
    stream.once('end', () => resolve({ status, text: Buffer.concat(chunks).toString('utf8') }))
    stream.once('error', reject)
    stream.once('close', () => reject(new GuestError('the guest ended the stream')))
  })
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
