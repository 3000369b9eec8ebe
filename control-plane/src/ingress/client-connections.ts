/**
 * Connections of clients: how many there are, how many of one address, what passed through them, and that each of them
 * says what it wants in time. (Node's own limits on heads are for servers that listen themselves.)
 */
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { IngressMetrics } from '../observe/ingress-metrics.ts'
import { IngressError } from './error.ts'

export type IngressLimits = {
  /** A client that says nothing is not kept. */
  firstByteMs: number
  handshakeMs: number
  /** From the first byte of a request, or from the end of the last answer and the time a client may be idle. */
  headMs: number
  keepAliveMs: number
  connectionsPerAddress: number
}

export const INGRESS_LIMITS: IngressLimits = {
  firstByteMs: 10_000,
  handshakeMs: 10_000,
  headMs: 20_000,
  keepAliveMs: 75_000,
  /** Many people can share an address; a proxy of ours is not counted. */
  connectionsPerAddress: 1_000,
}

type Client = { busy: number; timer: NodeJS.Timeout | undefined; counted: { in: number; out: number } }

export class ClientConnections {
  readonly #metrics: IngressMetrics
  readonly #limits: IngressLimits
  readonly #clients = new Map<Socket, Client>()
  readonly #perAddress = new Map<string, number>()

  constructor(metrics: IngressMetrics, limits: IngressLimits) {
    this.#metrics = metrics
    this.#limits = limits
  }

  get count(): number {
    return this.#clients.size
  }

  /** False when there are too many of this address already. */
  enter(socket: Socket, address: string): boolean {
    const before = this.#perAddress.get(address) ?? 0
    if (before >= this.#limits.connectionsPerAddress) return false
    this.#perAddress.set(address, before + 1)
    socket.once('close', () => {
      const left = this.#perAddress.get(address)! - 1 // Counted above.
      if (left === 0) this.#perAddress.delete(address)
      else this.#perAddress.set(address, left)
    })
    return true
  }

  /** From here on it speaks HTTP, within TLS or without. */
  watch(server: Server, event: 'connection' | 'secureConnection'): void {
    server.on(event, (socket: Socket) => this.#add(socket))
    server.on('request', (request: IncomingMessage, response: ServerResponse) => this.#begin(request.socket, response))
    server.on('upgrade', (request: IncomingMessage) => this.#begin(request.socket))
  }

  /** Is an answer under way on it? Then nothing else can be said. */
  isBusy(socket: Socket): boolean {
    return (this.#clients.get(socket)?.busy ?? 0) > 0
  }

  countBytes(): void {
    for (const socket of this.#clients.keys()) this.#count(socket)
  }

  #add(socket: Socket): void {
    this.#clients.set(socket, { busy: 0, timer: undefined, counted: { in: 0, out: 0 } })
    this.#await(socket, this.#limits.headMs)
    socket.once('close', () => {
      this.#count(socket)
      clearTimeout(this.#clients.get(socket)?.timer)
      this.#clients.delete(socket)
    })
  }

  #begin(socket: Socket, response?: ServerResponse): void {
    const client = this.#clients.get(socket)
    if (client === undefined) return
    clearTimeout(client.timer)
    client.busy++
    response?.once('close', () => {
      client.busy--
      if (client.busy === 0 && this.#clients.has(socket)) {
        this.#await(socket, this.#limits.keepAliveMs + this.#limits.headMs)
      }
    })
  }

  #await(socket: Socket, ms: number): void {
    const client = this.#clients.get(socket)
    if (client === undefined) return
    clearTimeout(client.timer)
    client.timer = setTimeout(() => {
      this.#metrics.requests.inc({ outcome: 'bad_request' })
      socket.end(new IngressError(408, 'The request took too long.').render(), () => socket.destroy())
    }, ms).unref()
  }

  #count(socket: Socket): void {
    const { counted } = this.#clients.get(socket)! // Only those that are there are counted.
    this.#metrics.bytes.inc({ direction: 'in' }, socket.bytesRead - counted.in)
    this.#metrics.bytes.inc({ direction: 'out' }, socket.bytesWritten - counted.out)
    counted.in = socket.bytesRead
    counted.out = socket.bytesWritten
  }
}
