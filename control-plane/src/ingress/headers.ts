/** Headers on their way through: what belongs to one connection stays there, and the sandbox learns who asked. */
import type { IncomingMessage } from 'node:http'
import { BlockList, isIP } from 'node:net'

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
/** Ours to say: from a stranger they would be a claim. `Expect` is answered here. */
const REPLACED = new Set(['x-forwarded-for', 'x-forwarded-proto', 'x-forwarded-host', 'forwarded', 'expect'])

/** Without these a message would be another one, so they are nobody's to take out by naming them in `Connection`. */
const KEPT = new Set(['host', 'content-length'])

/** As names and values in turn, in the order and the case they came in. */
export function passedHeaders(
  raw: readonly string[],
  connection: string | undefined,
  more = new Set<string>(),
): string[] {
  const named = new Set((connection ?? '').split(',').map((name) => name.trim().toLowerCase()))
  const passed: string[] = []
  for (let i = 0; i + 1 < raw.length; i += 2) {
    const name = raw[i]!.toLowerCase()
    const isNamed = named.has(name) && !KEPT.has(name)
    if (!HOP_BY_HOP.has(name) && !isNamed && !more.has(name)) passed.push(raw[i]!, raw[i + 1]!)
  }
  return passed
}

export function requestHeaders(
  request: IncomingMessage,
  secure: boolean,
  isTrusted: (ip: string) => boolean,
): string[] {
  const { headers, rawHeaders, socket } = request
  const passed = passedHeaders(rawHeaders, headers.connection, REPLACED)
  const address = plainAddress(socket.remoteAddress)
  const trusted = isTrusted(address)
  const before = trusted && headers['x-forwarded-for'] ? `${headers['x-forwarded-for']}, ` : ''
  const told = (name: string, ours: string) => (trusted ? (headers[name] as string | undefined) : undefined) ?? ours
  passed.push('X-Forwarded-For', before + address)
  passed.push('X-Forwarded-Proto', told('x-forwarded-proto', secure ? 'https' : 'http'))
  passed.push('X-Forwarded-Host', told('x-forwarded-host', headers.host ?? ''))
  if (headers['transfer-encoding'] !== undefined) passed.push('Transfer-Encoding', 'chunked')
  else if (headers['content-length'] === undefined && !BODILESS.has(request.method ?? '')) {
    passed.push('Content-Length', '0')
  }
  return passed
}

const plainAddress = (address: string | undefined): string => (address ?? '').replace(/^::ffff:/, '')

/** Who asks: the nearest that is no proxy of ours. */
export function clientAddress({ headers, socket }: IncomingMessage, isTrusted: (ip: string) => boolean): string {
  const forwarded = headers['x-forwarded-for'] // Several of them are one, joined by commas.
  const hops = [...String(forwarded ?? '').split(','), plainAddress(socket.remoteAddress)].map((hop) => hop.trim())
  let at = hops.length - 1
  while (at > 0 && isTrusted(hops[at]!) && isIP(hops[at - 1]!) !== 0) at--
  return hops[at]! // There is at least the last.
}

/** For these a server expects no body unless it is told of one. */
const BODILESS = new Set(['GET', 'HEAD', 'DELETE', 'OPTIONS', 'TRACE', 'CONNECT'])

export function trustedBy(proxies: readonly string[]): (ip: string) => boolean {
  const list = new BlockList()
  for (const proxy of proxies) {
    const [address = '', prefix] = proxy.split('/')
    const family = isIP(address) === 6 ? 'ipv6' : 'ipv4'
    if (isIP(address) === 0) continue
    if (prefix === undefined) list.addAddress(address, family)
    else list.addSubnet(address, Number(prefix), family)
  }
  return (ip) => isIP(ip) !== 0 && list.check(ip, isIP(ip) === 6 ? 'ipv6' : 'ipv4')
}
