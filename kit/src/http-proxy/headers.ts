/**
 * Headers that the proxy forwards. Headers of one connection (hop-by-hop, RFC 9110 §7.6.1) are not forwarded, and the
 * server behind learns the client's address from `X-Forwarded-For`.
 */
import type { IncomingMessage } from 'node:http'
import { isIP } from 'node:net'

const HOP_BY_HOP = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'http2-settings',
])
/** The proxy sets these itself, because a client could forge them. It also answers `Expect` itself. */
const REPLACED = new Set(['x-forwarded-for', 'x-forwarded-proto', 'x-forwarded-host', 'forwarded', 'expect'])

/** A client must not remove these by naming them in `Connection`: the message would have another meaning without them. */
const ALWAYS_FORWARDED = new Set(['host', 'content-length'])

/** Names and values alternate, in the order and case in which they came. */
export function forwardedHeaders(
  raw: readonly string[],
  connection: string | undefined,
  excluded = new Set<string>(),
): string[] {
  const named = new Set((connection ?? '').split(',').map((name) => name.trim().toLowerCase()))
  const forwarded: string[] = []
  for (let i = 0; i + 1 < raw.length; i += 2) {
    const name = raw[i]!.toLowerCase()
    const isNamed = named.has(name) && !ALWAYS_FORWARDED.has(name)
    if (!HOP_BY_HOP.has(name) && !isNamed && !excluded.has(name)) forwarded.push(raw[i]!, raw[i + 1]!)
  }
  return forwarded
}

export function requestHeaders(
  request: IncomingMessage,
  secure: boolean,
  isTrustedProxy: (ip: string) => boolean,
): string[] {
  const { headers, rawHeaders, socket } = request
  const forwarded = forwardedHeaders(rawHeaders, headers.connection, REPLACED)
  const address = plainAddress(socket.remoteAddress)
  const fromProxy = isTrustedProxy(address)
  const earlierHops = fromProxy && headers['x-forwarded-for'] ? `${headers['x-forwarded-for']}, ` : ''
  const ofProxyOr = (name: string, own: string) =>
    (fromProxy ? (headers[name] as string | undefined) : undefined) ?? own
  forwarded.push('X-Forwarded-For', earlierHops + address)
  forwarded.push('X-Forwarded-Proto', ofProxyOr('x-forwarded-proto', secure ? 'https' : 'http'))
  forwarded.push('X-Forwarded-Host', ofProxyOr('x-forwarded-host', headers.host ?? ''))
  if (headers['transfer-encoding'] !== undefined) forwarded.push('Transfer-Encoding', 'chunked')
  else if (headers['content-length'] === undefined && !BODILESS_METHODS.has(request.method ?? '')) {
    forwarded.push('Content-Length', '0')
  }
  return forwarded
}

const plainAddress = (address: string | undefined): string => (address ?? '').replace(/^::ffff:/, '')

/** The address of the client: the last hop that is not a trusted proxy. */
export function clientAddress({ headers, socket }: IncomingMessage, isTrustedProxy: (ip: string) => boolean): string {
  const forwarded = headers['x-forwarded-for'] // Node joins repeated headers with commas.
  const hops = [...String(forwarded ?? '').split(','), plainAddress(socket.remoteAddress)].map((hop) => hop.trim())
  let at = hops.length - 1
  while (at > 0 && isTrustedProxy(hops[at]!) && isIP(hops[at - 1]!) !== 0) at--
  return hops[at]! // `hops` is not empty: it ends with the address of the connection.
}

/** Servers expect no body with these methods unless a header announces one. */
const BODILESS_METHODS = new Set(['GET', 'HEAD', 'DELETE', 'OPTIONS', 'TRACE', 'CONNECT'])
