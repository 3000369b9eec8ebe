/** The URL of the gateway in what it sends to clients. Never taken from a request, whose Host header anyone can choose. */
import type { Config } from '../config.ts'

export type GatewayAddress = {
  /** Without a slash at the end. */
  readonly url: string
  /** Called when the gateway listens: without a configured URL, the port is known only then. */
  setPort(port: number): void
}

export function createGatewayAddress({
  baseUrl,
  host,
  port,
}: Pick<Config, 'baseUrl' | 'host' | 'port'>): GatewayAddress {
  const own = (actual: number) => `http://${host.includes(':') ? `[${host}]` : host}:${actual}`
  let url = (baseUrl ?? own(port)).replace(/\/+$/, '')
  return {
    get url() {
      return url
    },
    setPort(actual) {
      if (baseUrl === undefined) url = own(actual)
    },
  }
}
