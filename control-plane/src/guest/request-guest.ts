/**
 * Sends a short request to the agent of a guest: JSON in, JSON out. A response that does not match its schema is an
 * error.
 */

import { matches } from '@warren/kit/matches'
import type { Static, TSchema } from 'typebox'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { type GuestRequest, parseJson, readBody, waitForHeaders } from '../hosts/client.ts'
import { resetStream } from '../hosts/session.ts'
import { checkGuestResponse } from './failures.ts'

/** The largest response is the list of all processes with their arguments. */
const RESPONSE_MAX_BYTES = 8 * 1024 * 1024

export async function requestGuest<Schema extends TSchema>(
  deps: Deps,
  sandbox: Pick<SandboxRow, 'id' | 'host_id'>,
  request: GuestRequest & { body?: object | Uint8Array },
  schema: Schema,
  signal: AbortSignal,
): Promise<Static<Schema>> {
  const host = await deps.hosts.get(sandbox.host_id)
  const stream = host.openGuest(sandbox.id, request, signal)
  try {
    if (request.method === 'POST') stream.end(encode(request.body))
    await checkGuestResponse(stream, await waitForHeaders(stream, signal), signal)
    const value = parseJson(await readBody(stream, RESPONSE_MAX_BYTES, signal))
    if (!matches(schema, value))
      throw new Error(`the response of the guest to ${request.route} does not match its schema`)
    return value as Static<Schema>
  } finally {
    resetStream(stream)
  }
}

/** Bytes are sent unchanged, objects as JSON. */
const encode = (body: object | Uint8Array | undefined): string | Uint8Array =>
  body === undefined || body instanceof Uint8Array ? (body ?? '') : JSON.stringify(body)
