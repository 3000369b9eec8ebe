/**
 * Upgraded connections: raw tunnels (`tcp-tunnel`) and WebSockets.
 *
 * Node hands every upgrade to one listener and the request never reaches Fastify. We send it there anyway: with a
 * response that writes to the socket, it passes through the same hooks (credential, rate limit, ownership) and the
 * same error answers as any other request. A route that wants the connection takes it with `takeUpgrade`; whoever
 * does not simply answers.
 *
 * Some clients offer `Upgrade: h2c` with every plain request (the JDK's does). Only our two tokens count as an
 * upgrade; everything else stays an ordinary request, body and keep-alive included.
 */
import { type IncomingMessage, type Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { failure } from '@warren/kit/failure'
import type { FastifyReply, FastifyRequest } from 'fastify'

export const UPGRADE_TOKENS = ['tcp-tunnel', 'websocket'] as const
export type UpgradeToken = (typeof UPGRADE_TOKENS)[number]

/** The connection and what came with the request head: bytes already read belong to the new protocol. */
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
    // Until somebody takes it, a connection that breaks has nobody else to tell.
    socket.on('error', () => socket.destroy())
    pending.set(request, { socket: socket as Socket, head }) // The server listens for nothing else.
    const response = new ServerResponse(request)
    response.shouldKeepAlive = false
    // A Duplex serves as well as a Socket here; the type asks for more than is used.
    response.assignSocket(socket as never)
    response.on('finish', () => socket.end())
    route(request, response)
  })
  return {
    // The server knows nothing of them any more: one that is open would hold up its end for as long as it likes.
    close() {
      for (const socket of open) socket.destroy()
    },
  }
}

/** For refusals that come before the connection is taken: 426 is told first. */
export function requireUpgrade(request: FastifyRequest, token: UpgradeToken): Upgrade {
  const upgrade = pending.get(request.raw)
  if (upgrade && upgradeToken(request.raw) === token) return upgrade
  throw failure('upgrade_required', `this route needs Connection: Upgrade and Upgrade: ${token}`)
}

/** Takes the connection out of Fastify's hands, or throws 426 when no upgrade to `token` was asked for. */
export function takeUpgrade(request: FastifyRequest, reply: FastifyReply, token: UpgradeToken): Upgrade {
  const upgrade = requireUpgrade(request, token)
  pending.delete(request.raw)
  reply.hijack()
  reply.raw.detachSocket(upgrade.socket as never)
  return upgrade
}
