/** Where apps are reached: `<uniqueName>.<domain>`. */
import type { ProjectRow } from '../db/schema.ts'

export type AppAddress = {
  /** In lower case, without a port. Host names are matched against this. */
  readonly domain: string
  /** For URLs, with the port that clients need. */
  readonly urlDomain: string
  hostOf(project: Pick<ProjectRow, 'unique_name'>): string
  urlOf(project: Pick<ProjectRow, 'unique_name'>): string
  /** Called when apps are served: without a configured domain, URLs need the port, which the system may choose. */
  setPort(port: number): void
}

const LOCAL_DOMAIN = 'apps.localhost'

/** `configured` is WARREN_GATEWAY_APPS_DOMAIN. */
export function createAppAddress(configured: string): AppAddress {
  let urlDomain = configured || LOCAL_DOMAIN
  const domain = (configured || LOCAL_DOMAIN).replace(/:\d+$/, '').toLowerCase()
  return {
    domain,
    get urlDomain() {
      return urlDomain
    },
    hostOf: ({ unique_name }) => `${unique_name.toLowerCase()}.${urlDomain}`,
    urlOf: ({ unique_name }) => `https://${unique_name.toLowerCase()}.${urlDomain}`,
    setPort(port) {
      if (configured === '') urlDomain = `${LOCAL_DOMAIN}:${port}`
    },
  }
}
