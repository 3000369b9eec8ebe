/**
 * Translates error responses of a guest into failures of the API. The guest is not trusted: only known error codes have
 * an effect, and its text is truncated before its owner sees it.
 */
import type { ClientHttp2Stream } from 'node:http2'
import { badField, Failure, failure, upstreamUnavailable } from '@warren/kit/failure'
import { matches } from '@warren/kit/matches'
import {
  GUEST_STREAM_FAILURES,
  GuestFailure,
  type GuestStreamFailure,
  offsetExpiredFail,
  truncateUtf8,
} from '@warren/protocol'
import { parseJson, type ResponseHeaders, readBody } from '../hosts/client.ts'

/** For a sandbox with too many open connections, one of which has to close first. */
const TOO_MANY_RETRY_S = 1
const FAILURE_MAX_BYTES = 64 * 1024
export const GUEST_TEXT_MAX_BYTES = 1024

export const guestUnreachable = (cause: unknown) => upstreamUnavailable('guest unreachable', { cause })

/** Returns if the guest responded with 200, otherwise throws the corresponding failure. */
export async function checkGuestResponse(
  stream: ClientHttp2Stream,
  headers: ResponseHeaders,
  signal: AbortSignal,
): Promise<void> {
  if (headers[':status'] === 200) return
  const value = parseJson(await readBody(stream, FAILURE_MAX_BYTES, signal))
  if (!matches(GuestFailure, value)) throw new Error(`the guest responded with ${headers[':status']} and no error code`)
  throw toFailure(value)
}

/** For these codes the guest's text is shown to the owner, truncated; the code determines the HTTP status. */
const PROCESS_CODES = [
  'wrong_process_kind',
  'process_exited',
  'stdin_closed',
  'process_limit_reached',
  'wait_timeout',
] as const
/** The request field that each error code of the guest refers to. */
const FIELDS: Record<string, string> = {
  invalid_path: 'path',
  not_writable: 'path',
  too_large: 'body',
  invalid: 'body',
  invalid_cmd: 'cmd',
  invalid_cwd: 'cwd',
  invalid_signal: 'signal',
}
/** Messages for connections that the guest failed to open. */
const CONNECTION_FAILURES: Record<GuestStreamFailure, string> = {
  shell_failed: 'failed to start a shell in the sandbox',
  connect_refused: 'connection refused in the sandbox',
  connect_timeout: 'connecting to the port in the sandbox timed out',
  no_ssh_server: 'nothing listens on port 22 of the sandbox, and its image has no sshd; install openssh-server',
}

function toFailure({ code, message, oldest_available_seq: oldest }: GuestFailure): Error {
  const text = truncateUtf8(message, GUEST_TEXT_MAX_BYTES)
  if (code === 'file_not_found') return failure('file_not_found', 'file not found')
  if (code === 'no_space') return badField({ body: 'does not fit: no space left on the disk of the sandbox' })
  if (Object.hasOwn(FIELDS, code)) return badField({ [FIELDS[code]!]: text })
  if (code === 'process_not_found') return failure('process_not_found', 'process not found')
  const processCode = PROCESS_CODES.find((known) => known === code)
  if (processCode) return failure(processCode, text)
  if (code === 'output_offset_expired' && oldest !== undefined && Number.isSafeInteger(oldest)) {
    return new Failure('output_offset_expired', offsetExpiredFail(oldest))
  }
  if (code === 'too_many_streams') {
    const text = 'too many connections to this sandbox are open at once'
    return failure('rate_limited', text, { retryAfterSeconds: TOO_MANY_RETRY_S })
  }
  const connectionFailure = GUEST_STREAM_FAILURES.find((known) => known === code)
  if (connectionFailure) return upstreamUnavailable(CONNECTION_FAILURES[connectionFailure])
  return new Error(`unexpected error from the guest or its host: ${code} ${text}`)
}
