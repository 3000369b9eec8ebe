/**
 * Upgrades a request to `tcp-tunnel`: after the 101 response the connection carries the bytes of a port of the guest,
 * or of the terminal of a shell.
 */
import { TUNNEL_UPGRADE } from '@warren/protocol'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { recordUpgrade } from '../audit/record-requests.ts'
import type { Deps } from '../deps.ts'
import type { GuestRequest } from '../hosts/client.ts'
import { callerDisconnected } from '../http/caller-disconnected.ts'
import { requireUpgrade, takeUpgrade } from '../http/upgrade.ts'
import { openGuestConnection, relaySocket } from './connection.ts'

/**
 * The socket is upgraded only when the guest's side is open: before that a failure is a JSON response. Bytes that the
 * client sends early wait in its socket.
 */
export async function openTunnel(
  deps: Deps,
  request: FastifyRequest,
  reply: FastifyReply,
  to: Pick<GuestRequest, 'route' | 'query'>,
): Promise<void> {
  requireUpgrade(request, TUNNEL_UPGRADE)
  const stream = await openGuestConnection(deps, request.sandbox, to, callerDisconnected(reply))
  const upgrade = takeUpgrade(request, reply, TUNNEL_UPGRADE)
  recordUpgrade(deps, request)
  upgrade.socket.write(
    `HTTP/1.1 101 Switching Protocols\r\nUpgrade: ${TUNNEL_UPGRADE}\r\nConnection: Upgrade\r\n` +
      `X-Request-Id: ${request.id}\r\n\r\n`,
  )
  relaySocket(deps, request.sandbox.id, upgrade, stream)
}
