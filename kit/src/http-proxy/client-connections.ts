/**
 * Connections of clients to the proxy: limits how many one address may have, closes those that do not send their
 * request in time, and counts their bytes. (Node enforces its timeouts for request heads only on servers that listen
 * themselves; here a plain TCP server listens and hands the sockets over.)
 */
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { ConnectionsPerAddress } from '../connections-per-address.ts'
import type { ProxyObserver } from './backend.ts'
import { ProxyError } from './error.ts'

export type ProxyLimits = {
  /** From connecting to the first byte. */
  firstByteMs: number
  handshakeMs: number
  /** For a request head: from the start of the connection, or from the end of the allowed idle time between requests. */
  headMs: number
  keepAliveMs: number
  connectionsPerAddress: number
}

export const PROXY_LIMITS: ProxyLimits = {
  firstByteMs: 10_000,
  handshakeMs: 10_000,
  headMs: 20_000,
  keepAliveMs: 75_000,
  /** High, because many people can share an address. Trusted proxies are exempt. */
  connectionsPerAddress: 1_000,
}

/** `busy` is the number of responses in progress, `counted` the bytes that the observer knows. */
type Client = { busy: number; timer: NodeJS.Timeout | undefined; counted: { in: number; out: number } }

export class ClientConnections {
  readonly #observer: ProxyObserver
  readonly #limits: ProxyLimits
  readonly #clients = new Map<Socket, Client>()
  readonly #perAddress: ConnectionsPerAddress

  constructor(observer: ProxyObserver, limits: ProxyLimits) {
    this.#observer = observer
    this.#limits = limits
    this.#perAddress = new ConnectionsPerAddress(limits.connectionsPerAddress)
  }

  get count(): number {
    return this.#clients.size
  }

  /** Counts a new connection. Returns false if its address has too many already. */
  admit(socket: Socket, address: string): boolean {
    return this.#perAddress.admit(socket, address)
  }

  /** Watches the HTTP connections of a server, with TLS (`secureConnection`) or without (`connection`). */
  watch(server: Server, event: 'connection' | 'secureConnection'): void {
    server.on(event, (socket: Socket) => this.#add(socket))
    server.on('request', (request: IncomingMessage, response: ServerResponse) =>
      this.#beginRequest(request.socket, response),
    )
    server.on('upgrade', (request: IncomingMessage) => this.#beginRequest(request.socket))
  }

  /** True while a response is in progress on the connection, so nothing else may be written to it. */
  isBusy(socket: Socket): boolean {
    return (this.#clients.get(socket)?.busy ?? 0) > 0
  }

  countBytes(): void {
    for (const socket of this.#clients.keys()) this.#countBytesOf(socket)
  }

  #add(socket: Socket): void {
    this.#clients.set(socket, { busy: 0, timer: undefined, counted: { in: 0, out: 0 } })
    this.#expectRequest(socket, this.#limits.headMs)
    socket.once('close', () => {
      this.#countBytesOf(socket)
      clearTimeout(this.#clients.get(socket)?.timer)
      this.#clients.delete(socket)
    })
  }

  #beginRequest(socket: Socket, response?: ServerResponse): void {
    const client = this.#clients.get(socket)
    if (client === undefined) return
    clearTimeout(client.timer)
    client.busy++
    response?.once('close', () => {
      client.busy--
      if (client.busy === 0 && this.#clients.has(socket)) {
        this.#expectRequest(socket, this.#limits.keepAliveMs + this.#limits.headMs)
      }
    })
  }

  #expectRequest(socket: Socket, withinMs: number): void {
    const client = this.#clients.get(socket)
    if (client === undefined) return
    clearTimeout(client.timer)
    client.timer = setTimeout(() => {
      this.#observer.countRequest('bad_request')
      socket.end(new ProxyError(408, 'The request took too long.').render(), () => socket.destroy())
    }, withinMs).unref()
  }

  #countBytesOf(socket: Socket): void {
    const { counted } = this.#clients.get(socket)! // Called only for connections in the map.
    this.#observer.countBytes('in', socket.bytesRead - counted.in)
    this.#observer.countBytes('out', socket.bytesWritten - counted.out)
    counted.in = socket.bytesRead
    counted.out = socket.bytesWritten
  }
}
