/**
 * The shell as a WebSocket, for browsers. Binary messages carry the client's frames (input and terminal size), split
 * anywhere, and the terminal's output. Each side is read at the pace of the other. A WebSocket has no half-close: when
 * it closes, the terminal closes and the shell receives SIGHUP.
 */
import type { IncomingMessage } from 'node:http'
import type { ClientHttp2Stream } from 'node:http2'
import { failure } from '@warren/kit/failure'
import {
  SHELL_PAYLOAD_MAX_BYTES,
  SHELL_TICKET_PROTOCOL,
  type ShellWsQuery,
  shellWsTicket,
  shellWsToken,
} from '@warren/protocol'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { type WebSocket, WebSocketServer } from 'ws'
import { recordUpgrade } from '../audit/record-requests.ts'
import type { Deps } from '../deps.ts'
import { resetStream } from '../hosts/session.ts'
import { CREDENTIAL_HEADERS } from '../http/auth.ts'
import { callerDisconnected } from '../http/caller-disconnected.ts'
import { requireUpgrade, takeUpgrade } from '../http/upgrade.ts'
import { onClosed, openGuestConnection } from './connection.ts'

/** A message contains one or more frames; the largest frame fits with room to spare. */
const MESSAGE_MAX_BYTES = 4 * SHELL_PAYLOAD_MAX_BYTES
/** Output buffered for a client that has not read it yet. */
const WAITING_MAX_BYTES = 256 * 1024
/** Proxies close connections that are silent for a minute. */
const PING_MS = 30_000
/** 8 is the last draft version, which is identical on the wire. */
const VERSIONS: ReadonlySet<string> = new Set(['13', '8'])
const NORMAL = 1000
const UNSUPPORTED_DATA = 1003
const INTERNAL_ERROR = 1011

const server = new WebSocketServer({
  noServer: true,
  // A client that offers subprotocols expects one in the response. The ticket is repeated only if it offers nothing else.
  handleProtocols: (offered) =>
    [...offered].find((name) => !name.startsWith(SHELL_TICKET_PROTOCOL)) ?? [...offered][0] ?? false,
  perMessageDeflate: false,
  clientTracking: false,
  maxPayload: MESSAGE_MAX_BYTES,
})
/** `ws` writes the 101 itself, so the id of the request reaches it here. */
const requestIds = new WeakMap<IncomingMessage, string>()
server.on('headers', (headers, request) => headers.push(`X-Request-Id: ${requestIds.get(request)}`))

export async function openShellWebSocket(deps: Deps, request: FastifyRequest, reply: FastifyReply): Promise<void> {
  requireUpgrade(request, 'websocket')
  checkHandshake(request)
  const stream = await openGuestConnection(deps, request.sandbox, { route: 'shell' }, callerDisconnected(reply))
  const { socket, head } = takeUpgrade(request, reply, 'websocket')
  recordUpgrade(deps, request, isKeyInUrl(request) ? 'key_in_url' : undefined)
  socket.once('close', () => resetStream(stream))
  requestIds.set(request.raw, request.id)
  server.handleUpgrade(request.raw, socket, head, (peer) => {
    relay(peer, stream, () => deps.activity.recordUse(request.sandbox.id))
  })
}

/** Deprecated, because proxies log URLs. The owner of the key finds it in the audit log. */
function isKeyInUrl({ headers, query }: FastifyRequest): boolean {
  if (CREDENTIAL_HEADERS.some((header) => headers[header])) return false
  const ticket = shellWsTicket(query as ShellWsQuery, headers['sec-websocket-protocol'])
  return ticket === undefined && shellWsToken(query as ShellWsQuery) !== undefined
}

/** Checks what `ws` would reject too, but only after a shell was opened, and with a response that is not JSON. */
function checkHandshake({ method, headers }: FastifyRequest): void {
  const version = headers['sec-websocket-version']
  if (method !== 'GET' || !VERSIONS.has(String(version))) {
    throw failure('upgrade_required', 'this route needs Sec-WebSocket-Version: 13')
  }
  if (!/^[+/0-9a-z]{22}==$/i.test(headers['sec-websocket-key'] ?? '')) {
    throw failure('validation_failed', 'Sec-WebSocket-Key is missing or not 16 bytes in base64')
  }
}

function relay(peer: WebSocket, stream: ClientHttp2Stream, recordUse: () => void): void {
  peer.on('error', () => {}) // `close` follows.
  peer.on('message', (data: Buffer, isBinary) => {
    if (!isBinary) {
      peer.close(UNSUPPORTED_DATA, 'binary messages only')
      return resetStream(stream) // The peer may still send; the shell must not receive it.
    }
    recordUse()
    if (stream.destroyed || stream.write(data)) return
    peer.pause()
    stream.once('drain', () => peer.resume())
  })

  stream.on('data', (chunk: Buffer) => {
    recordUse()
    peer.send(chunk, { binary: true }, () => stream.resume())
    if (peer.bufferedAmount > WAITING_MAX_BYTES) stream.pause()
  })
  stream.once('end', () => {
    if (stream.rstCode === 0) peer.close(NORMAL)
  })
  onClosed(stream, () => {
    // Has no effect if it is already closing.
    peer.close(INTERNAL_ERROR, 'connection to the shell was lost')
    peer.resume()
  })

  const ping = setInterval(() => peer.ping(), PING_MS)
  peer.once('close', () => {
    clearInterval(ping)
    resetStream(stream)
  })
}
