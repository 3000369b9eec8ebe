/** Writes an error response to a socket and closes it, where there is no request that a route could respond to. */
import { STATUS_CODES } from 'node:http'
import type { Socket } from 'node:net'
import type { Failure } from '@warren/kit/failure'
import { ulid } from '@warren/protocol'

export function refuseConnection(socket: Socket, { status, data }: Failure): void {
  const body = JSON.stringify({ status: 'fail', data })
  socket.end(
    `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\nContent-Type: application/json\r\nX-Request-Id: ${ulid()}\r\n` +
      `Content-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
  )
}
