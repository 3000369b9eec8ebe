/** Short requests to a guest agent with JSON bodies. The guest is not trusted: its responses are limited and checked. */
import type { ClientHttp2Session, ClientHttp2Stream, IncomingHttpHeaders } from 'node:http2'
import { matches } from '@warren/kit/matches'
import { span, traceHeader } from '@warren/kit/span'
import { GuestFailure } from '@warren/protocol'
import type { Static, TSchema } from 'typebox'
import { openGuestStream } from './channel.ts'
import { addGuestSpans } from './guest-spans.ts'

/** More than any valid response, so that a hostile guest cannot fill the memory of the host. */
const RESPONSE_MAX_BYTES = 1024 * 1024

export class GuestError extends Error {
  override name = 'GuestError'
  /** What the guest responded, if it refused the request. */
  readonly failure: GuestFailure | undefined

  constructor(message: string, failure?: GuestFailure) {
    super(message)
    this.failure = failure
  }
}

type GuestRequest<Response> = {
  method: 'GET' | 'POST' | 'PUT' | 'DELETE'
  path: string
  body?: object
  response: Response
}

export const callGuest = <Response extends TSchema>(
  session: ClientHttp2Session,
  request: GuestRequest<Response>,
  signal: AbortSignal,
): Promise<Static<Response>> => span(`ask guest: ${request.path}`, () => sendAndRead(session, request, signal))

async function sendAndRead<Response extends TSchema>(
  session: ClientHttp2Session,
  request: GuestRequest<Response>,
  signal: AbortSignal,
): Promise<Static<Response>> {
  const sentAt = performance.now()
  const stream = openGuestStream(
    session,
    { ':method': request.method, ':path': request.path, ...traceHeader() },
    { signal, endStream: !request.body },
  )
  if (request.body) stream.end(JSON.stringify(request.body))
  const { status, headers, text } = await readResponse(stream)
  addGuestSpans(`guest: ${request.path}`, headers, { from: sentAt, to: performance.now() })
  const response = parse(text)
  if (status !== 200) {
    const failure = matches(GuestFailure, response) ? response : undefined
    throw new GuestError(`the guest refused ${request.path}: ${status} ${text.slice(0, 500)}`, failure)
  }
  if (!matches(request.response, response)) {
    throw new GuestError(`the guest sent an invalid response to ${request.path}`)
  }
  return response as Static<Response>
}

type GuestResponse = { status: number; headers: IncomingHttpHeaders; text: string }

function readResponse(stream: ClientHttp2Stream): Promise<GuestResponse> {
  return new Promise((resolve, reject) => {
    let status = 0
    let headers: IncomingHttpHeaders = {}
    const chunks: Buffer[] = []
    let bytes = 0
    stream.once('response', (received: IncomingHttpHeaders & { ':status'?: number }) => {
      status = received[':status'] ?? 0
      headers = received
    })
    stream.on('data', (chunk: Buffer) => {
      bytes += chunk.length
      if (bytes > RESPONSE_MAX_BYTES) {
        stream.destroy(new GuestError(`the response of the guest exceeds ${RESPONSE_MAX_BYTES} bytes`))
      } else chunks.push(chunk)
    })
    stream.once('end', () => resolve({ status, headers, text: Buffer.concat(chunks).toString('utf8') }))
    stream.once('error', reject)
    stream.once('close', () => reject(new GuestError('the guest closed the stream before the end of its response')))
  })
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined // Matches no schema.
  }
}
