/**
 * Resolves allowed names for the proxy, with a cache. The proxy connects to the addresses found here, never to the one
 * that the guest used, so a guest cannot reach another address by claiming an allowed name.
 */
import { Resolver } from 'node:dns/promises'
import { isIPv6 } from 'node:net'
import type { Upstream } from '../egress-proxy-protocol.ts'

const TRY_MS = 2_000
const TRIES = 2
/** An upper bound on the TTL of the name server, because addresses of names change. */
const TTL_MAX_SECONDS = 60
const CACHE_MAX = 10_000

export class Lookup {
  readonly #upstreams: () => Promise<Upstream[]>
  readonly #cache = new Map<string, { addresses: string[]; expiresAt: number }>()
  readonly #inProgress = new Map<string, Promise<string[]>>()
  #resolver: { servers: string; resolver: Resolver } | undefined

  constructor(upstreams: () => Promise<Upstream[]>) {
    this.#upstreams = upstreams
  }

  /** Empty when the name has no address, or when no server answers. */
  async find(name: string): Promise<string[]> {
    const cached = this.#cache.get(name)
    if (cached !== undefined && cached.expiresAt > Date.now()) return cached.addresses
    // Concurrent lookups of one name share a query.
    const lookup = this.#inProgress.get(name) ?? this.#query(name).finally(() => this.#inProgress.delete(name))
    this.#inProgress.set(name, lookup)
    return lookup
  }

  async #query(name: string): Promise<string[]> {
    try {
      const found = await (await this.#currentResolver()).resolve4(name, { ttl: true })
      const addresses = found.map(({ address }) => address)
      const seconds = Math.min(...found.map(({ ttl }) => ttl), TTL_MAX_SECONDS)
      this.#cache.delete(name)
      this.#cache.set(name, { addresses, expiresAt: Date.now() + seconds * 1_000 })
      if (this.#cache.size > CACHE_MAX) this.#cache.delete(this.#cache.keys().next().value!)
      return addresses
    } catch {
      // The name does not exist, or no server answers. In both cases the guest gets "name not found".
      return []
    }
  }

  /** The servers of a resolver cannot change while it has a query in progress, so other servers get a new resolver. */
  async #currentResolver(): Promise<Resolver> {
    const list = (await this.#upstreams()).map(({ address, port }) =>
      isIPv6(address.split('%')[0]!) ? `[${address}]:${port}` : `${address}:${port}`,
    )
    const servers = list.join(' ')
    if (this.#resolver?.servers !== servers) {
      const resolver = new Resolver({ timeout: TRY_MS, tries: TRIES })
      resolver.setServers(list)
      this.#resolver = { servers, resolver }
    }
    return this.#resolver.resolver
  }
}
