/**
 * Opens the listeners of the API and chooses the base URL that is printed.
 *
 * On a machine with virtual machines the API listens at two addresses, at the same port: WARREN_HOST, and WARREN_GUEST_HOST,
 * the link-local address at which sandboxes see this machine. Programs on the machine reach the second one too, so the base
 * URL that they use also works in a sandbox. The rules of the host agent close that address to every other network.
 */
import { once } from 'node:events'
import net, { type AddressInfo, type Server } from 'node:net'
import { isLoopback } from '@warren/kit/shared-settings'
import type { Config } from '../config.ts'
import type { App } from './server.ts'

export type Listening = { port: number; baseUrl: string; close(): Promise<void> }

/** With port 0: a free port of one address may be taken on the other. */
const ATTEMPTS_MAX = 20
/** Streams may last for hours and must not delay the stop. */
const CLOSE_LIMIT_MS = 1_500

export type ListenConfig = Pick<Config, 'host' | 'port' | 'guestHost' | 'serveGuests' | 'baseUrl'>

export async function listenForRequests(app: App, config: ListenConfig): Promise<Listening> {
  const { host, guestHost, serveGuests } = config
  const isSeparate = serveGuests && !isWildcard(host) && host !== guestHost
  const { port, guests } = isSeparate ? await listenOnBoth(app, config) : await listenOnOne(app, config)
  // An explicit address is one that other machines use. All other values mean this machine.
  const urlHost = serveGuests && (isWildcard(host) || isLoopback(host)) ? guestHost : renderHost(host)
  return {
    port,
    baseUrl: config.baseUrl ?? `http://${urlHost}:${port}`,
    async close() {
      guests?.close()
      const closeRest = setTimeout(() => app.server.closeAllConnections(), CLOSE_LIMIT_MS)
      try {
        await app.close()
      } finally {
        clearTimeout(closeRest)
      }
    },
  }
}

type Sockets = { port: number; guests?: Server }

async function listenOnOne(app: App, { host, port }: ListenConfig): Promise<Sockets> {
  await app.listen({ host, port })
  return { port: (app.server.address() as AddressInfo).port }
}

async function listenOnBoth(app: App, { host, port: wanted, guestHost }: ListenConfig): Promise<Sockets> {
  for (let attempt = 1; ; attempt++) {
    const guests = await listenForGuests(app, guestHost, wanted)
    const { port } = guests.address() as AddressInfo
    try {
      await app.listen({ host, port })
      return { port, guests }
    } catch (error) {
      guests.close()
      const isTaken = (error as NodeJS.ErrnoException).code === 'EADDRINUSE'
      if (wanted !== 0 || !isTaken || attempt === ATTEMPTS_MAX) throw error
    }
  }
}

/** Its connections are served by the server of the app, with its limits and timeouts. */
async function listenForGuests(app: App, address: string, port: number): Promise<Server> {
  // The settings that Node's HTTP server has for its own connections.
  const server = net.createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
    app.server.emit('connection', socket)
  })
  try {
    server.listen(port, address)
    await once(server, 'listening')
    return server
  } catch (error) {
    throw new Error(
      `cannot listen on ${address}, the address at which sandboxes see this machine (WARREN_GUEST_HOST), at port ${port}`,
      { cause: error },
    )
  }
}

const isWildcard = (host: string): boolean => host === '0.0.0.0' || host === '::'

/** Where the API listens on all addresses, clients connect to the loopback address. */
function renderHost(host: string): string {
  if (isWildcard(host)) return '127.0.0.1'
  return host.includes(':') ? `[${host}]` : host
}
