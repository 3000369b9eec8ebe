/** What a proxy is in front of, and who watches it. Types only. */
import type { Duplex } from 'node:stream'
import type { ProxyOutcome } from './error.ts'

/** `Target` is what a host name means, `Upstream` where that is at the moment. */
export type Backend<Target, Upstream> = {
  /** Undefined for a name that cannot lead anywhere. With or without a port, in any case. */
  parseHost(host: string | undefined): Target | undefined
  /** Equal for host names that may share a TLS connection. */
  keyOf(target: Target): string
  /** Whether the target exists: the key under which certificates for its names are counted, or undefined. */
  findOwner(target: Target): Promise<string | undefined>
  /** Throws a ProxyError if it cannot be reached now. */
  resolve(target: Target, signal: AbortSignal): Promise<Upstream>
  /** Connections may be reused for requests with the same name. */
  poolName(upstream: Upstream): string
  /** Throws a ProxyError if nothing accepts the connection. */
  connect(upstream: Upstream, signal: AbortSignal): Promise<Duplex>
  /** For clients. They must not reveal what exists. */
  messages: { closed: string; invalid: string; unreachable: string }
}

export type ProxyObserver = {
  countRequest(outcome: ProxyOutcome): void
  countBytes(direction: 'in' | 'out', bytes: number): void
  /** Called when a request is sent; the returned function when the head of its response has arrived. */
  startUpstream(): (connection: 'kept' | 'new') => void
}
