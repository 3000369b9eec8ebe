/** Limits how many connections to the API one address may have open. The operator's own proxies are exempt. */
import type { Server } from 'node:http'
import type { Socket } from 'node:net'
import { clientNetwork } from '@warren/kit/client-network'
import { ConnectionsPerAddress } from '@warren/kit/connections-per-address'
import { failure } from '@warren/kit/failure'
import { createTrustedProxyCheck } from '@warren/kit/trusted-proxies'
import type { Deps } from '../deps.ts'
import { refuseConnection } from './refuse-connection.ts'

export function limitConnections(server: Server, deps: Deps): void {
  const { connectionsPerAddress, trustedProxies } = deps.config
  if (connectionsPerAddress === 0) return
  const isTrustedProxy = createTrustedProxyCheck(trustedProxies)
  const connections = new ConnectionsPerAddress(connectionsPerAddress)
  server.on('connection', (socket: Socket) => {
    const address = socket.remoteAddress ?? ''
    if (isTrustedProxy(address.replace(/^::ffff:/, '')) || connections.admit(socket, clientNetwork(address))) return
    deps.metrics.refused.inc({ reason: 'connections' })
    refuseConnection(
      socket,
      failure('rate_limited', `too many connections, at most ${connectionsPerAddress} may be open`),
    )
    socket.resume() // What the client sent is dropped, so that it reads the response instead of a reset.
    setTimeout(() => socket.destroy(), REFUSED_MS).unref()
  })
}

const REFUSED_MS = 1_000
