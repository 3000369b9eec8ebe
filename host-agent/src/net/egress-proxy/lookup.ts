/** Where an allowed name leads: asked by the proxy itself, so what a guest believes about the name does not matter. */
import { Resolver } from 'node:dns/promises'
import { isIPv6 } from 'node:net'
import type { Upstream } from '../egress-proxy-protocol.ts'

const TRY_MS = 2_000
const TRIES = 2
/** A name server may say less; never more, because names move. */
const KEEP_MAX_SECONDS = 60
const KEPT_MAX = 10_000

export class Lookup {
  readonly #upstreams: () => Promise<Upstream[]>
  readonly #kept = new Map<string, { addresses: string[]; until: number }>()
  readonly #asking = new Map<string, Promise<string[]>>()
  #resolver: { servers: string; resolver: Resolver } | undefined

  constructor(upstreams: () => Promise<Upstream[]>) {
    this.#upstreams = upstreams
  }

  /** Empty when it has none, or when nobody says. */
  async find(name: string): Promise<string[]> {
    const kept = this.#kept.get(name)
    if (kept !== undefined && kept.until > Date.now()) return kept.addresses
    // Whoever asks meanwhile shares the answer.
    const asking = this.#asking.get(name) ?? this.#ask(name).finally(() => this.#asking.delete(name))
    this.#asking.set(name, asking)
    return asking
  }

  async #ask(name: string): Promise<string[]> {
    try {
      const found = await (await this.#current()).resolve4(name, { ttl: true })
      const addresses = found.map(({ address }) => address)
      const seconds = Math.min(...found.map(({ ttl }) => ttl), KEEP_MAX_SECONDS)
      this.#kept.delete(name)
      this.#kept.set(name, { addresses, until: Date.now() + seconds * 1_000 })
      if (this.#kept.size > KEPT_MAX) this.#kept.delete(this.#kept.keys().next().value!)
      return addresses
    } catch {
      // No such name, or no server that answers: the guest learns that the name leads nowhere.
      return []
    }
  }

  /** A resolver takes no other servers while it has a question under way, so other servers get another resolver. */
  async #current(): Promise<Resolver> {
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
