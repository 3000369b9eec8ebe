/**
 * Upgraded connections: raw tunnels (`tcp-tunnel`) and WebSockets.
 *
 * Node emits upgrade requests as a separate event, and they never reach Fastify. This file sends them there: with a
 * response object that writes to the socket, they pass the same hooks (credential, rate limit, ownership) and get the
 * same error responses as any other request. A route that upgrades the connection calls `takeUpgrade`; every other
 * route just sends its response (docs/decisions/0003-upgrades-through-the-router.md).
 *
 * Some clients, the JDK's among them, send `Upgrade: h2c` with every plain request. Only the two tokens below count as an
 * upgrade. Everything else remains an ordinary request, including its body and keep-alive.
 */
import { type IncomingMessage, type Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { failure } from '@warren/kit/failure'
import type { FastifyReply, FastifyRequest } from 'fastify'

export const UPGRADE_TOKENS = ['tcp-tunnel', 'websocket'] as const
export type UpgradeToken = (typeof UPGRADE_TOKENS)[number]

/** `head` holds bytes that arrived together with the request head and belong to the new protocol. */
export type Upgrade = { socket: Socket; head: Buffer }

const pending = new WeakMap<IncomingMessage, Upgrade>()

export function upgradeToken(request: IncomingMessage): UpgradeToken | undefined {
  const offered = (request.headers.upgrade ?? '').split(',').map((token) => token.trim().toLowerCase())
  return UPGRADE_TOKENS.find((token) => offered.includes(token))
}

export const shouldUpgrade = (request: IncomingMessage): boolean => upgradeToken(request) !== undefined

export function routeUpgrades(
  server: Server,
  route: (request: IncomingMessage, response: ServerResponse) => void,
): { close(): void } {
  const open = new Set<Duplex>()
  server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
    open.add(socket)
    socket.once('close', () => open.delete(socket))
    // Until a route takes the connection, no other listener handles its errors.
    socket.on('error', () => socket.destroy())
    pending.set(request, { socket: socket as Socket, head }) // A net server only creates sockets.
    const response = new ServerResponse(request)
    response.shouldKeepAlive = false
    // The type demands a Socket; only what a Duplex has is used.
    response.assignSocket(socket as never)
    response.on('finish', () => socket.end())
    route(request, response)
  })
  return {
    // The HTTP server no longer tracks these connections, so closing it does not close them.
    close() {
      for (const socket of open) socket.destroy()
    },
  }
}

/** Throws 426 unless the request asks for an upgrade to `token`. Called first, so that 426 precedes other errors. */
export function requireUpgrade(request: FastifyRequest, token: UpgradeToken): Upgrade {
  const upgrade = pending.get(request.raw)
  if (upgrade && upgradeToken(request.raw) === token) return upgrade
  throw failure('upgrade_required', `this route needs Connection: Upgrade and Upgrade: ${token}`)
}

/** Takes the connection over from Fastify, or throws 426 if the request does not ask for an upgrade to `token`. */
export function takeUpgrade(request: FastifyRequest, reply: FastifyReply, token: UpgradeToken): Upgrade {
  const upgrade = requireUpgrade(request, token)
  pending.delete(request.raw)
  reply.hijack()
  reply.raw.detachSocket(upgrade.socket as never)
  return upgrade
}
