/**
 * The shell for browsers: the frames of spec 4.11 in binary messages, cut anywhere, and the terminal's bytes back. Each
 * side is read at the pace of the other. A WebSocket has no half-close: when it closes, the terminal is hung up.
 */
import type { ClientHttp2Stream } from 'node:http2'
import { failure } from '@warren/kit/failure'
import { SHELL_PAYLOAD_MAX_BYTES } from '@warren/protocol'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { type WebSocket, WebSocketServer } from 'ws'
import type { Deps } from '../deps.ts'
import { resetStream } from '../hosts/session.ts'
import { callerDisconnected } from '../http/caller-disconnected.ts'
import { requireUpgrade, takeUpgrade } from '../http/upgrade.ts'
import { openPipe, whenClosed } from './pipe.ts'

/** A message holds one or more frames; the largest frame fits with room to spare. */
const MESSAGE_MAX_BYTES = 4 * SHELL_PAYLOAD_MAX_BYTES
/** Output that the client has not taken yet. */
const WAITING_MAX_BYTES = 256 * 1024
/** Proxies close what is silent for a minute. */
const PING_MS = 30_000
/** 8 is the last draft, which is the same on the wire. */
const VERSIONS: ReadonlySet<string> = new Set(['13', '8'])
const NORMAL = 1000
const UNSUPPORTED_DATA = 1003
const TROUBLE = 1011

const server = new WebSocketServer({
  noServer: true,
  perMessageDeflate: false,
  clientTracking: false,
  maxPayload: MESSAGE_MAX_BYTES,
})

export async function openShellWebSocket(deps: Deps, request: FastifyRequest, reply: FastifyReply): Promise<void> {
  requireUpgrade(request, 'websocket')
  checkHandshake(request)
  const stream = await openPipe(deps, request.sandbox, { route: 'shell' }, callerDisconnected(reply))
  const { socket, head } = takeUpgrade(request, reply, 'websocket')
  socket.once('close', () => resetStream(stream))
  server.handleUpgrade(request.raw, socket, head, (peer) => {
    join(peer, stream, () => deps.activity.recordUse(request.sandbox.id))
  })
}

/** What `ws` would refuse, in words of its own that are no JSON, and after a shell was opened for it. */
function checkHandshake({ method, headers }: FastifyRequest): void {
  const version = headers['sec-websocket-version']
  if (method !== 'GET' || !VERSIONS.has(String(version))) {
    throw failure('upgrade_required', 'this route needs Sec-WebSocket-Version: 13')
  }
  if (!/^[+/0-9a-z]{22}==$/i.test(headers['sec-websocket-key'] ?? '')) {
    throw failure('validation_failed', 'Sec-WebSocket-Key is missing or no 16 bytes in base64')
  }
}

function join(peer: WebSocket, stream: ClientHttp2Stream, note: () => void): void {
  peer.on('error', () => {}) // `close` follows.
  peer.on('message', (data: Buffer, isBinary) => {
    if (!isBinary) {
      peer.close(UNSUPPORTED_DATA, 'binary messages only')
      return resetStream(stream) // A peer that is told so may still send; the shell hears none of it.
    }
    note()
    if (stream.destroyed || stream.write(data)) return
    peer.pause()
    stream.once('drain', () => peer.resume())
  })

  stream.on('data', (chunk: Buffer) => {
    note()
    peer.send(chunk, { binary: true }, () => stream.resume())
    if (peer.bufferedAmount > WAITING_MAX_BYTES) stream.pause()
  })
  stream.once('end', () => {
    if (stream.rstCode === 0) peer.close(NORMAL)
  })
  whenClosed(stream, () => {
    // Nothing, if it is closing already.
    peer.close(TROUBLE, 'the shell was cut')
    peer.resume()
  })

  const ping = setInterval(() => peer.ping(), PING_MS)
  peer.once('close', () => {
    clearInterval(ping)
    resetStream(stream)
  })
}
