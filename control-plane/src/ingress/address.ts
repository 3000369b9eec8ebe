/** The domain under which clients reach sandboxes: `<id>-<port>.<domain>`. */

const LOCAL_DOMAIN = 'localhost'

export type IngressAddress = {
  /** Host names are matched against this. It has no port. */
  readonly domain: string
  /** For URLs that clients open, with a port where they need one. Empty while there is no ingress to reach. */
  readonly urlDomain: string
  /** Called when the ingress listens: without a configured domain, URLs need its port, which the system may choose. */
  setPort(port: number): void
}

/** `configured` is WARREN_INGRESS_DOMAIN: a domain, with the port that belongs in URLs if there is one. */
export function createIngressAddress(configured: string): IngressAddress {
  let urlDomain = configured
  return {
    domain: configured === '' ? LOCAL_DOMAIN : configured.replace(/:\d+$/, '').toLowerCase(),
    get urlDomain() {
      return urlDomain
    },
    setPort(port) {
      if (configured === '') urlDomain = `${LOCAL_DOMAIN}:${port}`
    },
  }
}
